//! What each setting determines.

/// What a setting determines, and therefore what it is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Output, display and identity of the process: not recorded for `--config`.
    Process,
    /// Devices, threads, and what only rank 0 uses: may differ between ranks.
    Rank,
    /// The result of the run: equal on all ranks.
    Run,
    /// The trajectory at a given world size: equal on all ranks, and in a resumed run.
    ///
    /// World size, batch size and, with a constant learning rate, the length of the run may change. Accumulation may
    /// change if the global batch stays the same.
    Trajectory,
}

impl Scope {
    /// The scope of a setting by its name in `config.json`, or of a flag that is not stored there.
    pub fn of_setting(name: &str) -> Self {
        match name {
            "config" | "print_config" | "resume" | "run_dir" | "export" | "find_lr" | "find_lr_steps"
            | "fast_dev_run" | "progress" | "mlflow" | "mlflow_experiment" | "help" | "version" | "rank"
            | "world_size" | "init_method" | "job_id" | "trace" => Scope::Process,
            "device" | "replicas" | "threads" | "workers" | "no_overlap" | "init_from" | "keep_last"
            | "peak_tflops" | "recipe" | "flags" => Scope::Rank,
            "sync_bn"
            | "train_samples"
            | "valid_split"
            | "shuffle"
            | "seed"
            | "lr"
            | "scale_lr"
            | "warmup_epochs"
            | "warmup_start_factor"
            | "lr_schedule"
            | "reduce_lr_on_plateau"
            | "ema"
            | "grad_accum_steps"
            | "clip_grad_norm"
            | "precision"
            | "grad_compression"
            | "sync_every"
            | "outer_lr"
            | "outer_momentum"
            | "sync_overlap" => Scope::Trajectory,
            _ => Scope::Run,
        }
    }
}
