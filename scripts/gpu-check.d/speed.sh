# gpu-check: images per second, compared with PyTorch. Sourced.

rates=()

# median RUN: images per second, median of the last 30 steps.
median() { column samples_per_second "$1" | tail -30 | sort -g | awk '{ a[NR] = $1 } END { if (NR) print a[int((NR + 1) / 2)] }'; }

# speed MODE BATCH: one run. Earlier runs have filled the kernel cache; tuning is in the first steps.
speed() {
    local mode=$1 batch=$2 name=speed-$1-$2 rate images=$(($2 * steps)) transport=auto
    # A single rank reduces nothing, unless NCCL is requested.
    [ "$mode$device" != ddpcuda ] || transport=nccl
    # Limits the time for generating images.
    [ $images -le 20480 ] || images=20480
    rm -rf "$out/logs/$name"
    part "speed $mode $batch" 100 "$mnist" --device "$device" --mode "$mode" --nproc-per-node 1 --transport "$transport" --dataset digits --train-limit "$images" --epochs $((batch * steps / images + 1)) --eval-limit 10 --batch-size "$batch" --max-steps "$steps" --progress plain --run-dir "$out/logs/$name" || return
    rate=$(median "$out/logs/$name")
    rates+=("{\"kind\": \"burn-ddp $mode\", \"batch\": $batch, \"images_per_second\": $rate}")
    printf -v "rate_${mode}_$batch" %s "$rate"
}

for batch in "${batches[@]}"; do
    speed single "$batch"
    speed ddp "$batch"
done

# PyTorch with and without TF32: Burn always uses it if the GPU supports it.
if [ "$device" = cuda ] && [ "$python" != "no PyTorch" ] && [ "${python##* }" = True ]; then
    for kind in eager compile; do
        [ "$(left)" -gt 20 ] || continue
        timeout -k 5 "$(left)" python3 "$here/benches/peers/torch_mnist.py" --kind $kind "${batches[@]}" > "$out/logs/torch-$kind.log" 2>&1
        while read -r line; do rates+=("$line"); done < <(grep '^{' "$out/logs/torch-$kind.log")
    done
fi

say ""
say "samples/s, median of the last 30 steps"
for rate in "${rates[@]}"; do say "  $rate"; done
for batch in "${batches[@]}"; do
    single=rate_single_$batch ddp=rate_ddp_$batch
    [ -n "${!single:-}" ] && [ -n "${!ddp:-}" ] || continue
    cost=$(awk -v s="${!single}" -v d="${!ddp}" 'BEGIN { printf "%.2f", (s / d - 1) * 100 }')
    say "  batch $batch: DDP in a world of one costs $cost % (goal: at most 1 %)"
    field "ddp_cost_percent_$batch" "$cost"
done
field speed "[$(IFS=,; echo "${rates[*]}")]"
