# Spark with the connector, the jobs that ship and the headrace command, for Spark's own scheduler on Kubernetes and for
# the Spark operator. Context: the root of the repository; `make images` builds it.
ARG BASE=python:3.11-slim
FROM $BASE AS lists
ARG BASE
COPY . /src
WORKDIR /src
RUN mkdir /lists \
 && python tools/locked.py headrace-cli > /lists/shared.txt \
 && python tools/locked.py headrace-jobs headrace-cli --without /lists/shared.txt > /lists/own.txt \
 && python tools/locked.py hatchling setuptools > /lists/builder.txt \
 && python tools/locked.py headrace-jobs headrace-cli --directories > /lists/members \
 && python tools/sbom.py spark headrace-jobs headrace-cli --and requirements-spark.lock --base "$BASE" > /lists/sbom.json

# Changes only with the lock; the other services share it.
FROM $BASE AS dependencies
COPY requirements-bootstrap.txt deploy/docker/dependencies.sh deploy/docker/trim.py /build/
COPY --from=lists /lists/shared.txt /build/
RUN sh /build/dependencies.sh /build/shared.txt

# Spark is published as source of half a gigabyte, nearly all of it JARs: a wheel is made of it here. Left out: what its
# interactive Scala shell needs.
FROM dependencies AS spark
COPY --from=lists /lists/builder.txt /build/
COPY requirements-spark.lock /build/
RUN /opt/installer/bin/uv pip install --quiet --no-cache --python /opt/installer/bin/python --no-deps --require-hashes \
    --only-binary :all: -r /build/builder.txt \
 && /opt/installer/bin/uv pip install --quiet --no-cache --python /opt/installer/bin/python --no-deps \
    --no-build-isolation --require-hashes --target /opt/spark/packages -r /build/requirements-spark.lock \
 && rm -rf /opt/spark/packages/pyspark/jars/connect-repl /opt/spark/packages/bin \
 && /opt/headrace/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/spark/packages

FROM dependencies AS service
COPY --from=lists /lists/own.txt /lists/builder.txt /build/
RUN sh /build/dependencies.sh /build/own.txt --prefix /opt/own \
 && /opt/installer/bin/uv pip install --quiet --no-cache --python /opt/installer/bin/python --no-deps \
    --require-hashes --only-binary :all: -r /build/builder.txt
COPY . /src
COPY --from=lists /lists/members /build/
RUN sh /src/deploy/docker/members.sh /opt/own < /build/members

FROM $BASE
# 185 in group 0, as Spark's own images: pod templates made for those fit.
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends openjdk-17-jre-headless procps tini \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 185 --gid 0 --home-dir /tmp --no-create-home --shell /usr/sbin/nologin spark
COPY --from=spark /opt/spark/packages /opt/headrace/lib/python3.11/site-packages
RUN ln -s /opt/headrace/lib/python3.11/site-packages/pyspark /opt/spark \
 && install -d -o 185 -g 0 -m 0770 /opt/spark/work-dir /opt/spark/conf
COPY LICENSE /usr/share/doc/headrace/
COPY --from=lists /lists/sbom.json /usr/share/doc/headrace/sbom.cdx.json
COPY --from=dependencies /opt/headrace /opt/headrace
COPY --from=service /opt/own /opt/headrace
COPY spark-jobs/topic_to_lake.py spark-jobs/windowed_aggregate.py spark-jobs/retention_audit.py \
     spark-jobs/topic_copy.py spark-jobs/lake_follow.py spark-jobs/lake_compact.py \
     spark-jobs/table_snapshot.py /opt/headrace/jobs/
COPY --chmod=755 deploy/docker/spark-entrypoint.sh /opt/headrace/bin/spark-entrypoint
ENV PATH=/opt/headrace/bin:/opt/spark/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 \
    JAVA_HOME=/usr/lib/jvm/java-17-openjdk-amd64 SPARK_HOME=/opt/spark PYSPARK_PYTHON=/opt/headrace/bin/python
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Headrace Spark" \
      org.opencontainers.image.description="Spark, the Headrace data source and jobs over topics" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION" \
      org.opencontainers.image.licenses="Apache-2.0"
USER 185:0
WORKDIR /opt/spark/work-dir
ENTRYPOINT ["spark-entrypoint"]
