# Takes the place of `play` in environments/shell/main; see support/drivers.py. Calls come as lines
# on standard input.
play() {
    while IFS= read -r line; do
        ask '%s' "$line" || return
        printf '%s\n' "$answer"
    done
    exit 0
}
