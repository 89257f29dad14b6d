//! The language-model example: world sizes, resume, generation, weights for PyTorch, and invalid texts.

mod precision;
use crate::common::{Outcome, Run, assert_close, run_example};
use std::{f64::consts::LN_2, fs, path::Path};
use tempfile::TempDir;

/// A network that trains in seconds; 59 windows of training text.
const TINY: &str =
    "--device cpu --progress plain --block-size 16 --layers 2 --heads 2 --width 16 --length 20";

fn run(flags: &str) -> Outcome {
    run_example("char_gpt", flags)
}

/// A folder with a text of 1,200 characters, some of which are not ASCII.
fn text() -> (TempDir, String) {
    let folder = tempfile::tempdir().expect("temporary folder");
    let path = folder.path().join("text.txt");
    let lines: String = (0..).map(|i| format!("Zeile {} für Zeile {}\n", i * i % 97, i)).take(100).collect();
    fs::write(&path, lines.chars().take(1200).collect::<String>()).expect("written");
    (folder, path.display().to_string())
}

/// Trains and returns the output.
fn train(text: &str, flags: &str) -> (Run, Outcome) {
    let trained = Run::new();
    let path = trained.path.display();
    let outcome = run(&format!("{TINY} --text {text} --run-dir {path} {flags}")).succeeded();
    (trained, outcome)
}

#[test]
fn every_world_size_follows_the_same_trajectory() {
    let (_folder, text) = text();
    // The last global batch of an epoch is short, and uneven over four ranks.
    let flags = "--scale-lr none --epochs 2 --lr 0.01";
    for tied in ["", "--tie-weights"] {
        let train = |world: usize, more: &str, batch: usize| {
            let flags = format!("{flags} {tied} --nproc-per-node {world} --batch-size {batch} {more}");
            train(&text, &flags).0
        };
        let one = train(1, "", 12);
        let losses = one.losses();
        assert!(losses.len() == 10 && losses[9] < losses[0] - 0.3, "it learns: {losses:?}");
        for many in [train(2, "", 6), train(4, "", 3), train(2, "--grad-accum-steps 2", 3)] {
            assert_close("loss", &many.losses(), &losses, 1e-4);
            for set in ["test_loss", "valid_loss"] {
                let [ours, theirs] = [&many, &one].map(|run| run.summary()[set].as_f64().expect("a loss"));
                assert_close(set, &[ours], &[theirs], 1e-4);
            }
        }
        let replicas = format!("{flags} {tied} --mode dp --device-ids cpu:0,cpu:1 --batch-size 12");
        let dp = self::train(&text, &replicas).0;
        assert_close("loss in dp mode", &dp.losses(), &losses, 1e-4);
    }
}

#[test]
fn a_resumed_run_is_bit_identical_to_an_uninterrupted_one() {
    let (folder, text) = text();
    let other = folder.path().join("other.txt");
    fs::write(&other, fs::read_to_string(&text).expect("text").replace('7', "8")).expect("written");
    for flags in [
        "--nproc-per-node 2 --batch-size 6 --dropout 0.2",
        "--mode single --batch-size 6 --grad-accum-steps 2 --dropout 0.1 --tie-weights",
    ] {
        let flags = format!("{flags} --epochs 2 --save-every 3 --keep-last 9");
        let (whole, _) = train(&text, &flags);
        // The checkpoint is in the middle of the first epoch.
        let part = whole.copied();
        fs::remove_file(part.path.join("summary.json")).expect("there is one");
        let from = part.path.join("checkpoints/step-000003");
        let flags = format!("{TINY} --text {text} {flags} --resume {}", from.display());
        let outcome = run(&flags).succeeded();
        assert!(outcome.stdout.contains("after step 3"), "{outcome:#?}");
        assert_eq!(part.digest(), whole.digest(), "{flags}");
        assert_eq!(part.losses(), whole.losses(), "{flags}");
        // The text is part of the checkpoint's identity.
        let flags = format!("{TINY} --text {} --resume {}", other.display(), whole.path.display());
        run(&flags).failed_with(&["--text"]);
    }
}

#[test]
fn losses_are_given_in_nats_and_bits() {
    let (_folder, text) = text();
    let (trained, outcome) = train(&text, "--mode single --max-steps 3");
    for (line, key) in [("validation ", "valid_loss"), ("test ", "test_loss")] {
        let line = outcome.stdout.lines().find(|found| found.starts_with(line) && found.contains("nats"));
        let line = line.unwrap_or_else(|| panic!("no line with the {key}: {outcome:#?}"));
        let numbers: Vec<f64> = line.split([' ', ',']).filter_map(|word| word.parse().ok()).collect();
        let nats = trained.summary()[key].as_f64().expect("a loss");
        assert_close(key, &numbers, &[nats, nats / LN_2, nats.exp()], 0.006);
    }
    // The network has hardly learned, so that its loss is near that of guessing.
    let characters = trained.json("config.json")["vocabulary"].as_str().expect("text").chars().count();
    let loss = trained.summary()["valid_loss"].as_f64().expect("a loss");
    assert!((loss - (characters as f64).ln()).abs() < 0.3, "{loss} for {characters} characters");
    assert!(outcome.stdout.contains("sample        20 characters"), "{outcome:#?}");
}

#[test]
fn text_is_generated_from_a_run() {
    let (folder, text) = text();
    let flags = "--mode single --max-steps 8 --save-every 4 --lr 0.01";
    let (run_folder, _) = train(&text, flags);
    let path = run_folder.path.display();
    let generate = |flags: &str| run(&format!("--generate Zeile --model {flags}")).succeeded().stdout;
    let out = generate(&format!("{path} --length 50"));
    assert!(out.starts_with("Zeile") && out.trim_end_matches('\n').chars().count() <= 55, "{out:?}");
    assert_eq!(out, generate(&format!("{path} --length 50")), "equal seeds");
    assert_ne!(out, generate(&format!("{path} --length 50 --seed 7")), "other seeds");
    let greedy = |seed| generate(&format!("{path}/checkpoints/last --temperature 0 --seed {seed}"));
    assert_eq!(greedy(1), greedy(2));
    assert_eq!(greedy(1), generate(&format!("{path}/model.bpk --top-k 1")));

    run(&format!("--generate Жar --model {path}")).failed_with(&["--generate", "'Ж'"]);
    run(&format!("--generate Z --model {}", folder.path().display()))
        .failed_with(&["--model", "config.json"]);
    run("--generate Z --model /nowhere/at/all").failed_with(&["--model", "/nowhere/at/all"]);
    fs::write(run_folder.path.join("config.json"), "{}").expect("written");
    run(&format!("--generate Z --model {path}")).failed_with(&["--model", "config.json"]);
}

#[test]
fn weights_are_exported_with_the_names_of_nanogpt() {
    let (folder, text) = text();
    let (trained, _) = train(&text, "--mode single --max-steps 1");
    let file = folder.path().join("gpt.safetensors");
    let export = format!("export {} {}", trained.path.display(), file.display());
    run(&export).succeeded();
    let bytes = fs::read(&file).expect("weights");
    let tensors = safetensors::SafeTensors::deserialize(&bytes).expect("safetensors");
    let shape = |name: &str| tensors.tensor(name).unwrap_or_else(|e| panic!("{name}: {e}")).shape().to_vec();
    let characters = trained.json("config.json")["vocabulary"].as_str().expect("text").chars().count();
    assert_eq!(shape("wte.weight"), [characters, 16]);
    assert_eq!(shape("wpe.weight"), [16, 16]);
    assert_eq!(shape("h.1.attn.c_attn.weight"), [48, 16]);
    assert_eq!(shape("h.0.mlp.c_fc.bias"), [64]);
    assert_eq!(shape("h.1.ln_2.weight"), [16]);
    assert_eq!(shape("lm_head.weight"), [characters, 16]);
    run(&export).failed_with(&["already exists"]);

    // They are initial weights of another run, with the same text only.
    let init = format!("--mode single --max-steps 1 --lr 0 --init-from {}", file.display());
    let (same, _) = train(&text, &init);
    assert_eq!(same.digest(), trained.digest());
}

#[test]
fn runs_start_from_the_weights_of_a_run_on_another_text() {
    let (folder, text) = text();
    let (trained, _) = train(&text, "--mode single --max-steps 1");
    let other = |name: &str, change: fn(String) -> String| {
        let path = folder.path().join(name);
        fs::write(&path, change(fs::read_to_string(&text).expect("text"))).expect("written");
        path.display().to_string()
    };
    let init = format!("--mode single --max-steps 1 --lr 0 --init-from {}", trained.path.display());
    let same_characters = other("reversed.txt", |text| text.chars().rev().collect());
    let (continued, _) = train(&same_characters, &init);
    assert_eq!(continued.digest(), trained.digest());
    let other_characters = other("other.txt", |text| text.replace('Z', "Y"));
    run(&format!("{TINY} --text {other_characters} {init}")).failed_with(&["--init-from", "vocabulary"]);
}

#[test]
fn invalid_texts_are_rejected() {
    let (folder, _) = text();
    let flags = |path: &Path| format!("{TINY} --text {}", path.display());
    let invalid = |name: &str, bytes: &[u8], words: &[&str]| {
        let path = folder.path().join(name);
        fs::write(&path, bytes).expect("written");
        run(&flags(&path)).failed_with(&[&["--text", name], words].concat());
    };
    run(&flags(&folder.path().join("missing.txt"))).failed_with(&["--text", "missing.txt", "No such file"]);
    invalid("empty.txt", b"", &["empty"]);
    invalid("latin1.txt", b"caf\xe9", &["not UTF-8 at byte 3"]);
    invalid("short.txt", b"a short text", &["10 of 12 characters", "--block-size"]);
    invalid("small.txt", &[b'a'; 100], &["validation", "at least 17"]);
    run(&format!("{TINY} --heads 3")).failed_with(&["--width 16", "--heads 3"]);
    let outcome = run("--generate text");
    assert!(outcome.stderr.contains("--model"), "{outcome:#?}");
}
