# gpu-check: table, JSON file and execution of the parts. Sourced.

say() { printf '%s\n' "$*" | tee -a "$table"; }
# Quotes a text for JSON.
text() { printf '"%s"' "$(printf '%s' "$1" | tr '\n\t' '  ' | sed 's/[\\"]/\\&/g')"; }
field() { printf ',\n  "%s": %s' "$1" "$2" >> "$json"; }
left() { echo $((limit_seconds - SECONDS)); }

failed() {
    say "$(printf '%-34s FAILED   %s' "$1" "$2")"
    field "$1" "$(text "failed: $2")"
    failed=1
}

# part NAME SECONDS COMMAND...: runs a part; the last line of its output is the detail. A panic fails the part.
part() {
    local name=$1 limit=$(($2 * patience)) code begun=$SECONDS log detail
    shift 2
    log="$out/logs/${name// /-}.log"
    if [ "$(left)" -le 5 ]; then
        say "$(printf '%-34s SKIPPED  no time left' "$name")"
        field "$name" '"skipped: no time left"'
        failed=1
        return 1
    fi
    [ "$limit" -le "$(left)" ] || limit=$(left)
    (timeout -k 5 "$limit" bash -uc '"$@"' gpu-check "$@") > "$log" 2>&1
    code=$?
    part_seconds=$((SECONDS - begun))
    detail=$(grep -v '^ *$' "$log" | tail -1 | cut -c1-300)
    if [ $code = 124 ] || [ $code = 137 ]; then
        failed "$name" "did not end within $limit s; $detail"
    elif [ $code != 0 ]; then
        failed "$name" "$detail"
    elif grep -q panicked "$log"; then
        code=1
        failed "$name" "a thread panicked: $(grep -A1 -m1 panicked "$log" | tr '\n' ' ' | cut -c1-250)"
    else
        say "$(printf '%-34s passed   %3s s' "$name" "$part_seconds")"
        field "$name" '"passed"'
    fi
    return $code
}

# finish RESULT: completes the JSON file.
finish() {
    field seconds "$SECONDS"
    field result "$(text "$1")"
    printf '\n}\n' >> "$json"
    mv "$json" "$out/gpu-check.json"
    mv "$table" "$out/gpu-check.txt"
}
