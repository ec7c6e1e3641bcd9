# The parameter server, the rlx server, the metrics server and TensorBoard: one image, four commands.
FROM python:3.11-slim
WORKDIR /relaax
COPY . .
RUN pip install --no-cache-dir '.[server]'
# From elsewhere: the installed package is to have the compiled kernels, not the copy that lies here.
RUN cd / && python -m relaax_like.parameter_server.kernels
CMD ["relaax-parameter-server", "--config", "algorithms/a2c/a2c.yaml", "--bind", "0.0.0.0:7000"]
