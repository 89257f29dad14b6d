//! Replaces inline PTX by calls of the functions in `cuda_on_cpu.h` and `mma_on_cpu.h`.
//!
//! g++ refuses the instructions that have no such function: `cp.async`, `stmatrix`, tensor maps, clusters, and `mma` of
//! other types and sizes than those of capability 7.5.

/// Replaces each statement such as `asm volatile("atom.add.u32 %0, [%1], %2;" : "=r"(a) : "l"(p), "r"(v) );`.
pub fn calls(source: &str) -> String {
    let mut text = String::new();
    let mut rest = source;
    while let Some(at) = rest.find("asm ") {
        let (before, statement) = rest.split_at(at);
        text += before;
        let end = end_of_statement(statement);
        text += &call(&statement[..end]).unwrap_or_else(|| statement[..end].to_owned());
        rest = &statement[end..];
    }
    text + rest
}

/// Length of the statement, without its semicolon. Semicolons of the PTX are within quotes.
fn end_of_statement(statement: &str) -> usize {
    let mut quoted = false;
    let end = statement.char_indices().find(|(_, letter)| {
        quoted ^= *letter == '"';
        *letter == ';' && !quoted
    });
    end.map_or(statement.len(), |(at, _)| at)
}

fn call(statement: &str) -> Option<String> {
    let (_, rest) = statement.split_once('"')?;
    let (ptx, operands) = rest.split_once('"')?;
    let instruction = ptx.split_whitespace().next()?;
    let names = operands.split(')').filter_map(|piece| Some(piece.rsplit_once('(')?.1));
    let names: Vec<&str> = names.collect();
    let parts: Vec<&str> = instruction.split('.').collect();
    let function = match parts[..] {
        ["atom", .., operation, _] => {
            return Some(format!("{} = atom_{operation}({})", names.first()?, names[1..].join(", ")));
        }
        ["mma", "sync", "aligned", "m16n8k8", "row", "col", "f32", "f16", "f16", "f32"] => {
            "mma_m16n8k8_f32_f16".to_owned()
        }
        ["ldmatrix", "sync", "aligned", "m8n8", count, "shared::cta", "b16"] => format!("ldmatrix_{count}"),
        ["ldmatrix", "sync", "aligned", "m8n8", count, "trans", "shared::cta", "b16"] => {
            format!("ldmatrix_{count}_trans")
        }
        _ => return None,
    };
    Some(format!("ptx_{function}({})", names.join(", ")))
}
