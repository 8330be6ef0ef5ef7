# The partition broker, and the headrace command. Context: the root of the repository; `make images` builds it.
ARG BASE=python:3.11-slim
FROM $BASE AS lists
ARG BASE
COPY . /src
WORKDIR /src
RUN mkdir /lists \
 && python tools/locked.py headrace-cli > /lists/shared.txt \
 && python tools/locked.py headrace-broker headrace-cli --without /lists/shared.txt > /lists/own.txt \
 && python tools/locked.py hatchling > /lists/builder.txt \
 && python tools/locked.py headrace-broker headrace-cli --directories > /lists/members \
 && python tools/sbom.py broker headrace-broker headrace-cli --base "$BASE" > /lists/sbom.json

# Changes only with the lock; broker, coordinator and admin share it.
FROM $BASE AS dependencies
COPY requirements-bootstrap.txt deploy/docker/dependencies.sh deploy/docker/trim.py /build/
COPY --from=lists /lists/shared.txt /build/
RUN sh /build/dependencies.sh /build/shared.txt

FROM dependencies AS service
COPY --from=lists /lists/own.txt /lists/builder.txt /build/
RUN sh /build/dependencies.sh /build/own.txt --prefix /opt/own \
 && /opt/installer/bin/uv pip install --quiet --no-cache --python /opt/installer/bin/python --no-deps \
    --require-hashes --only-binary :all: -r /build/builder.txt
COPY . /src
COPY --from=lists /lists/members /build/
RUN sh /src/deploy/docker/members.sh /opt/own < /build/members

FROM $BASE
RUN groupadd --gid 10001 headrace \
 && useradd --uid 10001 --gid 10001 --home-dir /tmp --no-create-home --shell /usr/sbin/nologin headrace \
 && install -d -o 10001 -g 10001 -m 0750 /var/lib/headrace
# Where the base image comes without the bytecode of the standard library, each start would compile it anew.
RUN python -m compileall -q -x '/(dist-packages|site-packages|ensurepip|idlelib|lib2to3|test|tests|turtledemo)/' \
    "$(python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')"
COPY LICENSE /usr/share/doc/headrace/
COPY --from=lists /lists/sbom.json /usr/share/doc/headrace/sbom.cdx.json
COPY --from=dependencies /opt/headrace /opt/headrace
COPY --from=service /opt/own /opt/headrace
ENV PATH=/opt/headrace/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Headrace broker" \
      org.opencontainers.image.description="Keeps partition logs in RocksDB, replicates and serves them" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION" \
      org.opencontainers.image.licenses="Apache-2.0"
USER 10001:10001
WORKDIR /tmp
ENTRYPOINT ["python", "-m", "headrace_broker"]
