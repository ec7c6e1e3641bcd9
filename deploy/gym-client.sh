#!/bin/sh
# gym-client.sh RLX_SERVER ENVIRONMENT [display]: one environment process; see gym.Dockerfile.
set -eu

if [ $# -lt 2 ] || [ $# -gt 3 ] || { [ $# -eq 3 ] && [ "$3" != display ]; }; then
    echo "usage: $0 RLX_SERVER ENVIRONMENT [display]" >&2
    exit 2
fi

main="$(dirname "$0")/../environments/OpenAI_Gym/main"
if [ $# -eq 3 ]; then
    export DISPLAY="${DISPLAY_NUMBER:-:99}"
    ready="$(mktemp)"  # Xvfb writes its number to it
    Xvfb "$DISPLAY" -screen 0 1024x768x24 -nolisten tcp -displayfd 3 3>"$ready" &
    screen=$!
    # A client that comes before the screen would continue without a window.
    while [ ! -s "$ready" ]; do
        if ! kill -0 "$screen" 2>/dev/null; then
            rm -f "$ready"
            echo "$0: there is no screen $DISPLAY, because Xvfb has ended; see its error above" >&2
            exit 1
        fi
        sleep 0.1
    done
    rm -f "$ready"
    # Without a password, so on loopback only unless told otherwise.
    x11vnc -display WAIT"$DISPLAY" -forever -shared -nopw -quiet -rfbport "${VNC_PORT:-5900}" \
        -listen "${VNC_LISTEN:-localhost}" &
    exec python3 "$main" --rlx-server "$1" --env "$2" --display
fi
exec python3 "$main" --rlx-server "$1" --env "$2"
