//! Building blocks of a self-contained HTML page.

/// Escapes text for HTML and SVG.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Renders the page with a title and parts in HTML.
pub fn page(title: &str, parts: &[String]) -> String {
    let (title, style, version) = (escape(title), include_str!("style.css"), env!("CARGO_PKG_VERSION"));
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title}</title>\n\
         <style>\n{style}</style>\n</head>\n<body>\n<h1>{title}</h1>\n{}\
         <footer>Made by burn-ddp {version}.</footer>\n</body>\n</html>\n",
        parts.concat()
    )
}

/// Renders labelled key figures.
pub fn tiles(tiles: &[(String, String)]) -> String {
    let tile = |(what, value): &(String, String)| {
        format!("<div class=\"tile\"><b>{}</b><span>{}</span></div>", escape(value), escape(what))
    };
    format!("<div class=\"tiles\">{}</div>\n", tiles.iter().map(tile).collect::<String>())
}

/// Renders a table whose first column contains row headers.
pub fn table(header: &[String], rows: &[Vec<String>]) -> String {
    let cells = |tag: &str, cells: &[String]| {
        cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", escape(cell))).collect::<String>()
    };
    let row = |row: &Vec<String>| {
        let (name, values) = row.split_at(row.len().min(1));
        format!("<tr>{}{}</tr>\n", cells("th", name), cells("td", values))
    };
    let rows: String = rows.iter().map(row).collect();
    format!("<div class=\"wide\"><table><tr>{}</tr>\n{rows}</table></div>\n", cells("th", header))
}

/// Formats a duration in the unit that fits.
pub fn duration(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match whole {
        0..10 => format!("{seconds:.1} s"),
        10..60 => format!("{whole} s"),
        60..3600 => format!("{} min {} s", whole / 60, whole % 60),
        3600.. => format!("{} h {} min", whole / 3600, whole % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped() {
        let page = page("<script>", &[table(&["a&b".into()], &[vec!["\"x\"".into(), "1".into()]])]);
        assert!(page.contains("<title>&lt;script&gt;</title>") && !page.contains("<script>"));
        assert!(page.contains("<th>a&amp;b</th>") && page.contains("<th>&quot;x&quot;</th><td>1</td>"));
    }

    #[test]
    fn durations_use_the_unit_that_fits() {
        let texts = [1.25, 42.4, 321.2, 3600.0, 7290.0].map(duration);
        assert_eq!(texts, ["1.2 s", "42 s", "5 min 21 s", "1 h 0 min", "2 h 1 min"]);
    }
}
