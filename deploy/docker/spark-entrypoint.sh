#!/bin/bash
# What Spark's scheduler for Kubernetes starts: `driver ARGUMENTS` or `executor`, told the rest by the environment. With
# anything else that is run: `headrace topic list`, `spark-submit …`, `python`.
set -euo pipefail

under_init() {
  exec tini -s -- "$@"
}

driver() {
  local own_address="$SPARK_DRIVER_BIND_ADDRESS"
  under_init "$SPARK_HOME/bin/spark-submit" --deploy-mode client \
    --conf "spark.driver.bindAddress=$own_address" \
    --conf "spark.executorEnv.SPARK_DRIVER_POD_IP=$own_address" "$@"
}

executor() {
  # Options of the JVM come numbered from 0, each in a variable of its own.
  local -a options=()
  local number=0 name
  while name=SPARK_JAVA_OPT_$number && [ -n "${!name+set}" ]; do
    options+=("${!name}")
    number=$((number + 1))
  done
  local classes="${SPARK_CONF_DIR:-$SPARK_HOME/conf}:$SPARK_HOME/jars/*"
  [ -z "${SPARK_EXTRA_CLASSPATH:-}" ] || classes="$classes:$SPARK_EXTRA_CLASSPATH"
  under_init "$JAVA_HOME/bin/java" "${options[@]}" \
    "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" -cp "$classes:$PWD" \
    org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
    --app-id "$SPARK_APPLICATION_ID" \
    --executor-id "$SPARK_EXECUTOR_ID" \
    --cores "$SPARK_EXECUTOR_CORES" \
    --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
    --hostname "$SPARK_EXECUTOR_POD_IP" \
    --podName "$SPARK_EXECUTOR_POD_NAME" \
    --driver-url "$SPARK_DRIVER_URL"
}

case "${1:-}" in
  driver | executor) "$@" ;;
  "") exec headrace --help ;;
  *) exec "$@" ;;
esac
