#!/usr/bin/env bash
# Tries the images as they are run: a cluster of one container each, read-only, without rights, through which records go.
#   TAG=0.1.0   DOCKER=docker   REGISTRY=host/path   ETCD=quay.io/coreos/etcd:v3.6.8
set -euo pipefail
cd "$(dirname "$0")"
docker=${DOCKER:-docker}
tag=${TAG:-0.1.0}
prefix=${REGISTRY:+$REGISTRY/}headrace
etcd=${ETCD:-quay.io/coreos/etcd:v3.6.8}
run=headrace-smoke-$$
names=()
cleanup() {
  local code=$?
  for name in "${names[@]}"; do
    [ $code = 0 ] || { echo "--- $name" >&2; $docker logs --tail 20 "$run-$name" >&2 || true; }
    $docker rm --force --volumes "$run-$name" >/dev/null || true
  done
  $docker network rm "$run" >/dev/null || true
}
trap cleanup EXIT
$docker network create "$run" >/dev/null
locked=(--read-only --tmpfs /tmp --cap-drop ALL --security-opt no-new-privileges)

start() { # NAME IMAGE ARGUMENTS...
  local name=$1 image=$2
  shift 2
  names+=("$name")
  $docker run --detach --name "$run-$name" --hostname "$name" --network "$run" --network-alias "$name" "${locked[@]}" \
    "${options[@]}" "$image" "$@" >/dev/null
}
inside() { # IMAGE ARGUMENTS...: python smoke.py there
  local image=$1
  shift
  $docker run --rm --network "$run" "${locked[@]}" --volume "$PWD/smoke.py:/smoke.py:ro" --entrypoint python "$image" \
    /smoke.py "$@"
}

inside "$prefix/controller:$tag" imports headrace_controller headrace_common.rpc headrace_common.runtime headrace_common.adapters
inside "$prefix/broker:$tag" imports headrace_broker headrace_common headrace headrace_cli
inside "$prefix/coordinator:$tag" imports headrace_coordinator headrace_common headrace headrace_cli
inside "$prefix/admin:$tag" imports headrace_admin headrace_common headrace headrace_cli
inside "$prefix/streams:$tag" imports headrace_streams headrace_cli pyarrow._s3fs
inside "$prefix/connect:$tag" imports headrace_connect_worker headrace_connect headrace_cli psycopg.cursor pyiceberg.catalog.sql deltalake.table obstore.store pyarrow._s3fs
for name in broker coordinator admin streams connect; do inside "$prefix/$name:$tag" batches; done
if $docker run --rm --entrypoint python "$prefix/controller:$tag" -c 'import numpy' 2>/dev/null; then
  echo "the controller's image has numpy" >&2
  exit 1
fi

options=(--tmpfs /var/lib/etcd --entrypoint etcd)
start etcd "$etcd" --data-dir /var/lib/etcd/data --listen-client-urls http://0.0.0.0:2379 \
  --advertise-client-urls http://etcd:2379
options=()
start controller "$prefix/controller:$tag" --listen 0.0.0.0:9390 --etcd etcd:2379
options=(--mount "type=volume,target=/var/lib/headrace")
start broker "$prefix/broker:$tag" --listen 0.0.0.0:9292 --controllers controller:9390 --data-dir /var/lib/headrace/data
options=()
start coordinator "$prefix/coordinator:$tag" --listen 0.0.0.0:9492 --controllers controller:9390
start admin "$prefix/admin:$tag" --listen 0.0.0.0:9490 --http-listen 0.0.0.0:8080 --hosts admin \
  --controllers controller:9390
for attempt in 1 2 3 4 5 6; do
  health=$(timeout 20 $docker exec "$run-broker" headrace cluster health --bootstrap broker:9292 2>&1) && break
  [ "$attempt" -lt 6 ] || { echo "the cluster is not healthy: $health" >&2; exit 1; }
  sleep 2
done
echo "$health"
inside "$prefix/broker:$tag" round-trip broker:9292 http://admin:8080
options=(--volume "$PWD/smoke_words.py:/app/words.py:ro" --tmpfs /var/lib/headrace:uid=10001 --env HEADRACE_BOOTSTRAP=broker:9292)
start streams "$prefix/streams:$tag" words.py --state-dir /var/lib/headrace/streams
inside "$prefix/broker:$tag" words broker:9292
options=(--tmpfs /data:uid=10001 --volume "$PWD/smoke.yaml:/smoke.yaml:ro")
start connect "$prefix/connect:$tag" --bootstrap-servers broker:9292 --files-allowed-paths /data
$docker exec "$run-connect" sh -c 'printf "one\ntwo\n" > /data/a.txt'
for attempt in 1 2 3 4 5 6 7 8 9 10; do
  applied=$($docker exec "$run-connect" headrace connect apply /smoke.yaml 2>&1) && break
  [ "$attempt" -lt 10 ] || { echo "the worker takes no connector: $applied" >&2; exit 1; }
  sleep 3
done
inside "$prefix/broker:$tag" lines broker:9292
for name in connect streams admin coordinator broker controller; do
  $docker stop --time 30 "$run-$name" >/dev/null
  code=$($docker inspect --format '{{.State.ExitCode}}' "$run-$name")
  [ "$code" = 0 ] || { echo "$name ended with $code" >&2; exit 1; }
done
echo "the images of $tag work"
