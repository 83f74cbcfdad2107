# The sandbox in which `grpo-lab course grade` runs each submission where there is no bubblewrap (macOS, Windows), and
# for people whom you do not know:
#
#     docker build -t grpo-lab-grade .
#
# It holds Python and the libraries. The package comes in at each run, read-only and without the answers.
FROM python:3.12-slim
WORKDIR /libraries
COPY requirements.lock .
RUN pip install --no-cache-dir uv \
 && uv pip install --system --no-cache --torch-backend=cpu -c requirements.lock torch \
 && uv pip install --system --no-cache -r requirements.lock
USER 65534:65534
WORKDIR /tmp
