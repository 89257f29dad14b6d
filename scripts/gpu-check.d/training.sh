# gpu-check: starting ranks, comparing losses, killing a rank. Sourced and exported to the parts.

# world SIZE COMMAND...: SIZE ranks that share one GPU. NCCL before 2.30 rejects that unless the ranks appear to be on
# different machines, which then communicate over sockets.
world() {
    local size=$1 rank pids=() code=0
    shift
    rank_environment "$size"
    for ((rank = 0; rank < size; rank++)); do
        RANK=$rank LOCAL_RANK=$rank NCCL_HOSTID=gpu-check-$rank "$@" &
        pids+=($!)
    done
    for rank in "${pids[@]}"; do wait "$rank" || code=$?; done
    return $code
}

rank_environment() {
    export WORLD_SIZE=$1 LOCAL_WORLD_SIZE=$1 MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + RANDOM % 20000))
    export BURN_DDP_SECRET=gpu-check-$RANDOM-$RANDOM NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 NCCL_MULTI_RANK_GPU_ENABLE=1
}

# column NAME RUN: a column of a run's steps.
column() { awk -F, -v name="$1" 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == name) c = i; next } { print $c }' "$2/steps.csv"; }

# same RUN RUN TOLERANCE: compares the losses of two runs. NaN counts as a difference.
same() {
    paste <(column loss "$1") <(column loss "$2") | awk -v most="$3" '
        { d = $1 - $2; if (d < 0) d = -d; if (!(d <= worst)) worst = d; n++ }
        $1 !~ /^[0-9.eE+-]+$/ || $2 !~ /^[0-9.eE+-]+$/ { bad = 1 }
        END { printf "%d steps, largest difference %g, at most %g\n", n, worst, most; exit !(n > 0 && !bad && worst <= most) }'
}

# train_same NAME REFERENCE COMMAND...: trains and compares with the run REFERENCE.
train_same() {
    local name=$1 base=$2
    shift 2
    rm -rf "$out/logs/$name"
    "$@" --run-dir "$out/logs/$name" && same "$out/logs/$name" "$out/logs/$base" "$tolerance"
}

# number RUN FIELD: a field of a run's summary.
number() { sed -n "s/.*\"$2\": *\([0-9.e+-]*\).*/\1/p" "$1/summary.json"; }

# epoch WANTED FLAGS...: trains and compares the test accuracy.
epoch() {
    local wanted=$1 reached
    shift
    rm -rf "$out/logs/epoch"
    "$mnist" --device "$device" --mode single "$@" --progress plain --run-dir "$out/logs/epoch" || return
    reached=$(number "$out/logs/epoch" test_accuracy)
    echo "accuracy $reached, at least $wanted"
    awk -v a="$reached" -v w="$wanted" 'BEGIN { exit !(a >= w) }'
}

# kill_one COMMAND...: two ranks, of which one is killed after five steps. The other must end by itself.
kill_one() {
    local pids=() rank folder="$out/logs/killed"
    rank_environment 2
    rm -rf "$folder"
    for rank in 0 1; do
        RANK=$rank LOCAL_RANK=$rank NCCL_HOSTID=gpu-check-$rank "$@" --run-dir "$folder" &
        pids+=($!)
    done
    for ((i = 0; i < 900; i++)); do
        [ "$(wc -l < "$folder/steps.csv" 2> /dev/null || echo 0)" -gt 5 ] && break
        sleep 0.1
    done
    kill -9 "${pids[1]}"
    SECONDS=0
    wait "${pids[0]}" && { echo "rank 0 ended as if nothing had happened"; return 1; }
    echo "rank 0 ended $SECONDS s after rank 1 was killed"
    [ $SECONDS -le 30 ]
}

export -f world rank_environment column same train_same number epoch kill_one
export out program mnist device tolerance
