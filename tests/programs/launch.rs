//! `burn-ddp launch`: starts any program, stops all ranks when one fails, restarts them, and leaves no process behind.

mod starting;
use crate::common::{
    self, command, finish,
    launched::{launch, signal, sorted, start, wait_until},
    processes_with, program,
};
use std::{
    collections::BTreeSet,
    fs, thread,
    time::{Duration, Instant},
};

#[test]
fn every_rank_gets_the_same_variables_as_from_torchrun() {
    let script = "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK $MASTER_ADDR \
                  $TORCHELASTIC_RESTART_COUNT $TORCHELASTIC_MAX_RESTARTS $0 $1; test $MASTER_PORT -gt 0";
    let mut args = vec!["launch", "--nproc-per-node", "3", "--", "sh", "-c", script];
    args.extend(["--flag", "--tee"]);
    let outcome = finish(command(&program(), &args).spawn().expect("built")).succeeded();
    let wanted: Vec<String> =
        (0..3).map(|r| format!("[rank{r}] {r} {r} 3 3 0 127.0.0.1 0 0 --flag --tee")).collect();
    assert_eq!(sorted(&outcome), wanted, "{outcome:#?}");
    assert_eq!(outcome.stderr, "");
}

#[test]
fn threads_are_divided_between_ranks_by_default() {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let script = "echo $OMP_NUM_THREADS $RAYON_NUM_THREADS";
    let each = (cores / 2).max(1);
    let outcome = launch("--nproc-per-node 2", script).succeeded();
    assert_eq!(sorted(&outcome), [0, 1].map(|rank| format!("[rank{rank}] {each} {each}")));
    let outcome = finish(start("", script, &[("OMP_NUM_THREADS", "7")])).succeeded();
    assert_eq!(outcome.stdout, format!("[rank0] 7 {cores}\n"));
}

#[test]
fn ranks_share_a_secret_and_a_port_that_can_be_bound() {
    let outcome = launch("--nproc-per-node 2", "echo $MASTER_PORT $BURN_DDP_SECRET").succeeded();
    let told: BTreeSet<&str> =
        outcome.stdout.lines().filter_map(|line| line.split_once(' ')).map(|(_, told)| told).collect();
    assert_eq!(told.len(), 1, "the same on both: {outcome:#?}");
    let outcome = launch("--master-port 29999", "echo $MASTER_PORT").succeeded();
    assert_eq!(outcome.stdout, "[rank0] 29999\n");
}

#[test]
fn the_first_failure_ends_the_job_with_its_code_and_last_lines() {
    let script = "if [ $RANK = 1 ]; then echo before; echo the reason >&2; exit 7; fi; exec sleep 300";
    let outcome = launch("--nproc-per-node 3", script);
    assert_eq!(outcome.code, Some(7), "{outcome:#?}");
    for words in ["rank 1 of 3 exited with code 7", "    the reason\n", "    before\n", "the job was stopped"]
    {
        assert!(outcome.stderr.contains(words), "should say `{words}`: {}", outcome.stderr);
    }
    // The last ten lines that are not empty.
    let script = "i=1; while [ $i -le 30 ]; do echo line $i; echo; i=$((i+1)); done; printf 'no end'; exit 7";
    let outcome = launch("--nproc-per-node 1", script);
    let last: String = (22..=30).map(|n| format!("    line {n}\n")).collect();
    assert!(outcome.stderr.contains(&format!(":\n{last}    no end\n")), "{}", outcome.stderr);
}

#[test]
fn a_signal_is_named_and_gives_a_shells_exit_code() {
    for (number, name) in [(libc::SIGSEGV, "SIGSEGV"), (libc::SIGKILL, "SIGKILL")] {
        let outcome =
            launch("--nproc-per-node 2", &format!("[ $RANK = 0 ] || kill -{number} $$; exec sleep 300"));
        assert_eq!(outcome.code, Some(128 + number), "{outcome:#?}");
        let words = format!("rank 1 of 2 was killed by signal {number} ({name}");
        assert!(outcome.stderr.contains(&words), "{}", outcome.stderr);
    }
}

#[test]
fn the_first_failure_is_reported_and_not_its_consequences() {
    // Exit code 75 means that another rank failed first. It may be observed before that rank exits.
    let script = "[ $RANK = 0 ] && exit 75; sleep 0.5; exit 3";
    let outcome = launch("--nproc-per-node 2", script);
    assert_eq!(outcome.code, Some(3), "{outcome:#?}");
    assert!(outcome.stderr.contains("rank 1 of 2"), "{}", outcome.stderr);
}

#[test]
fn a_graceful_shutdown_of_all_ranks_is_not_a_failure() {
    // One rank receives a signal and all exit cleanly: no restart, no report.
    let script = "sleep 0.$RANK; exit 143";
    let outcome = launch("--nproc-per-node 3 --max-restarts 2", script);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(143), ""), "{outcome:#?}");
    // A failure of another rank takes precedence.
    let outcome = launch("--nproc-per-node 2", "[ $RANK = 0 ] && exit 143; sleep 0.5; exit 3");
    assert_eq!(outcome.code, Some(3), "{outcome:#?}");
}

#[test]
fn a_missing_program_is_named() {
    for program_name in ["./no-such-program", "no-such-program-anywhere"] {
        let args = ["launch", "--nproc-per-node", "2", "--", program_name];
        let outcome = finish(command(&program(), &args).spawn().expect("built"));
        outcome.failed_with(&[program_name]);
    }
    let outcome =
        finish(command(&program(), &["launch", "--nnodes", "2", "--", "true"]).spawn().expect("built"));
    outcome.failed_with(&["--node-rank"]);
}

#[test]
fn signals_reach_every_rank_and_its_children() {
    for (number, trap) in [(libc::SIGTERM, "TERM"), (libc::SIGINT, "INT")] {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().display();
        // Each rank has a child that receives the signal itself. By POSIX, background jobs of a shell ignore SIGINT.
        let (heard, then): (&[&str], _) =
            if number == libc::SIGINT { (&["outer"], "") } else { (&["outer", "inner"], "wait;") };
        let script = format!(
            "trap 'echo outer > {path}/outer$RANK; {then} exit 0' {trap}
             sh -c 'trap \"echo inner > {path}/inner$RANK; exit 0\" {trap}; : > {path}/ready$RANK; while :; do sleep 0.1; done' &
             wait $!"
        );
        let child = start("--nproc-per-node 2", &script, &[]);
        wait_until("both ranks run", || (0..2).all(|r| folder.path().join(format!("ready{r}")).exists()));
        signal(child.id(), number);
        assert_eq!(finish(child).code, Some(128 + number));
        for name in heard.iter().flat_map(|name| [format!("{name}0"), format!("{name}1")]) {
            assert!(folder.path().join(&name).exists(), "{name} did not hear {trap}");
        }
    }
}

#[test]
fn a_rank_that_ignores_a_signal_is_killed_at_the_second_one() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let ready = folder.path().join("ready");
    let script = format!("trap '' TERM; : > {}; while :; do sleep 0.1; done", ready.display());
    let child = start("", &script, &[("BURN_DDP_TEST", "deaf-rank-4801")]);
    wait_until("the rank runs", || ready.exists());
    signal(child.id(), libc::SIGTERM);
    thread::sleep(Duration::from_millis(800));
    signal(child.id(), libc::SIGTERM);
    let outcome = finish(child);
    assert_eq!(outcome.code, Some(143), "{outcome:#?}");
    assert!(outcome.stderr.contains("rank(s) 0 did not exit"), "{}", outcome.stderr);
    assert!(processes_with("deaf-rank-4801").is_empty());
}

#[test]
fn children_of_ranks_are_ended() {
    let marker = "left-behind-4802";
    // A child that has closed its pipes, and one that keeps them open.
    for script in ["sleep 300 >/dev/null 2>&1 & exit 0", "sleep 300 & exit 0", "sleep 300 & exit 5"] {
        let began = Instant::now();
        let outcome = finish(start("--nproc-per-node 2", script, &[("BURN_DDP_TEST", marker)]));
        assert!(outcome.code == Some(0) || outcome.code == Some(5), "{outcome:#?}");
        assert!(began.elapsed() < Duration::from_secs(60), "{script} was waited for");
        wait_until("all gone", || processes_with(marker).is_empty());
    }
}

#[test]
fn a_killed_launcher_leaves_no_rank_and_no_child() {
    let marker = "killed-launcher-4803";
    let folder = tempfile::tempdir().expect("temporary folder");
    let script = format!("sleep 300 & : > {}/$RANK; wait", folder.path().display());
    let child = start("--nproc-per-node 2", &script, &[("BURN_DDP_TEST", marker)]);
    wait_until("both ranks run", || (0..2).all(|r| folder.path().join(r.to_string()).exists()));
    assert!(processes_with(marker).len() >= 5, "a launcher, two shells, two sleepers");
    signal(child.id(), libc::SIGKILL);
    finish(child);
    wait_until("all gone", || processes_with(marker).is_empty());
}

#[test]
fn a_failed_round_is_repeated_with_a_new_secret() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let script = format!(
        "echo $RANK $BURN_DDP_SECRET $TORCHELASTIC_RUN_ID >> {}/$TORCHELASTIC_RESTART_COUNT
         [ $TORCHELASTIC_RESTART_COUNT = 2 ] && exit 0
         [ $RANK = 1 ] && exit 9; exec sleep 300",
        folder.path().display()
    );
    let outcome = launch("--nproc-per-node 2 --max-restarts 3", &script).succeeded();
    for words in ["restart 1 of 3", "restart 2 of 3", "rank 1 of 2 exited with code 9"] {
        assert!(outcome.stderr.contains(words), "should say `{words}`: {}", outcome.stderr);
    }
    let (mut secrets, mut jobs) = (BTreeSet::new(), BTreeSet::new());
    for round in 0..3 {
        let text = fs::read_to_string(folder.path().join(round.to_string())).expect("the round ran");
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split(' ').collect()).collect();
        // The rank that does not fail may have been stopped before its write.
        assert!(!lines.is_empty() && lines.iter().all(|line| line[1] == lines[0][1]), "{text}");
        secrets.insert(lines[0][1].to_owned());
        jobs.insert(lines[0][2].to_owned());
    }
    assert_eq!((secrets.len(), jobs.len()), (3, 1), "a secret a round, one job");
}

#[test]
fn the_number_of_restarts_is_limited() {
    let outcome = launch("--max-restarts 2", "echo attempt $TORCHELASTIC_RESTART_COUNT; exit 4");
    assert_eq!(outcome.code, Some(4));
    assert_eq!(sorted(&outcome), [0, 1, 2].map(|n| format!("[rank0] attempt {n}")));
    assert!(outcome.stderr.contains("the job was stopped after 2 restart(s)"), "{}", outcome.stderr);
}

#[test]
fn output_is_logged_by_attempt_and_rank_and_optionally_printed() {
    let script = "echo out $RANK; echo err $RANK >&2; [ $TORCHELASTIC_RESTART_COUNT = 1 ]";
    for tee in [false, true] {
        let folder = tempfile::tempdir().expect("temporary folder");
        let dir = folder.path().join("logs");
        let flags = format!("--max-restarts 1 --nproc-per-node 1 --log-dir {}", dir.display());
        let outcome = launch(&format!("{flags}{}", if tee { " --tee" } else { "" }), script).succeeded();
        let job = fs::read_dir(&dir).expect("the folder").next().expect("a job").expect("its folder").path();
        for (file, text) in [
            ("attempt0/rank0.stdout.log", "out 0\n"),
            ("attempt0/rank0.stderr.log", "err 0\n"),
            ("attempt1/rank0.stdout.log", "out 0\n"),
        ] {
            assert_eq!(fs::read_to_string(job.join(file)).expect(file), text);
        }
        assert_eq!(outcome.stdout, if tee { "[rank0] out 0\n[rank0] out 0\n" } else { "" });
        let log = job.join("attempt0/rank0.*.log").display().to_string();
        assert!(outcome.stderr.contains(&log), "should name {log}: {}", outcome.stderr);
    }
    let outcome = launch("--log-dir /proc/nowhere", "true");
    outcome.failed_with(&["--log-dir", "/proc/nowhere"]);
}

#[test]
fn large_output_is_complete_and_not_interleaved() {
    let script = "i=0; while [ $i -lt 3000 ]; do echo $RANK line $i of many; i=$((i+1)); done";
    let outcome = launch("--nproc-per-node 4", script).succeeded();
    assert_eq!(outcome.stdout.lines().count(), 12_000);
    for line in outcome.stdout.lines() {
        let rank = line.strip_prefix("[rank").and_then(|rest| rest.get(..1)).expect("a prefix");
        assert!(
            line.starts_with(&format!("[rank{rank}] {rank} line ")) && line.ends_with("of many"),
            "{line}"
        );
    }
}

#[test]
fn spawn_runs_a_function_as_every_rank() {
    let example = common::example("all_reduce");
    let outcome = finish(command(&example, &["3"]).spawn().expect("cargo built the examples")).succeeded();
    assert_eq!(outcome.stdout.lines().count(), 2, "only rank 0 prints: {outcome:#?}");
    assert!(outcome.stdout.starts_with("sum [3.0, 3.0] over "), "{outcome:#?}");
    // Under a launcher it starts no process.
    let args = ["launch", "--nproc-per-node", "2", "--", &example.display().to_string(), "3"];
    let outcome = finish(command(&program(), &args).spawn().expect("built")).succeeded();
    assert_eq!(outcome.stdout.lines().count(), 2, "only rank 0 prints: {outcome:#?}");
    assert!(outcome.stdout.starts_with("[rank0] sum [1.0, 2.0] over "), "{outcome:#?}");
}

#[test]
fn a_rank_of_an_earlier_round_is_rejected() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let (path, example) = (folder.path().display(), common::example("all_reduce"));
    // In the second round, rank 2 pretends to be rank 1 of a world of two with the first round's secret, while the real
    // rank 1 waits.
    let script = format!(
        "if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then echo $BURN_DDP_SECRET > {path}/old; exit 1; fi
         export WORLD_SIZE=2 LOCAL_WORLD_SIZE=2
         case $RANK in
         0) exec {example} ;;
         1) while [ ! -e {path}/refused ]; do sleep 0.05; done; exec {example} ;;
         2) RANK=1 LOCAL_RANK=1 BURN_DDP_SECRET=$(cat {path}/old) {example} 2> {path}/error && exit 8
            mv {path}/error {path}/refused ;;
         esac",
        example = example.display()
    );
    let outcome = launch("--nproc-per-node 3 --max-restarts 1", &script).succeeded();
    assert!(outcome.stdout.starts_with("[rank0] sum [1.0, 2.0] over "), "{outcome:#?}");
    let refused = fs::read_to_string(folder.path().join("refused")).expect("its error");
    assert!(refused.contains("secret"), "{refused}");
}
