# An environment process. docker run IMAGE RLX_SERVER ENVIRONMENT [display], for example
#   docker run --rm --network host IMAGE localhost:7001 CartPole-v1 display
# With `display` the environment is drawn on a virtual screen that VNC shows on localhost:5900,
# or on another port with -e VNC_PORT=... In a network of its own:
#   docker run -e VNC_LISTEN=0.0.0.0 -p 127.0.0.1:15900:5900 ...
FROM python:3.11-slim
RUN apt-get update && apt-get install -y --no-install-recommends xvfb x11vnc && rm -rf /var/lib/apt/lists/*
WORKDIR /relaax
COPY . .
RUN pip install --no-cache-dir '.[envs]'
EXPOSE 5900
ENTRYPOINT ["deploy/gym-client.sh"]
CMD ["localhost:7001", "CartPole-v1"]
