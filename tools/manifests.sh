#!/usr/bin/env bash
# Renders the chart with its defaults into deploy/k8s/headrace.yaml, for people without Helm, and each
# deploy/k8s/spark-*.values.yaml into the Spark application beside it; copies into the chart what Helm cannot read
# outside of it. With --check: fails if the committed files differ.
set -euo pipefail
cd "$(dirname "$0")/.."
chart=deploy/helm/headrace
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
mkdir -p "$out/monitoring" "$out/k8s"
cp deploy/monitoring/alerts.yaml deploy/monitoring/dashboards/*.json "$out/monitoring"
helm=$(tools/helm.sh)
# What Helm renders depends on no cluster.
render() { "$helm" template headrace "$chart" --namespace headrace --kube-version 1.34.0 "$@"; }
{
  echo "# The chart deploy/helm/headrace, rendered with its defaults. Made by \`make manifests\`: change the chart, not this."
  echo "#   kubectl create namespace headrace && kubectl -n headrace apply -f deploy/k8s/headrace.yaml"
  # Hooks are Helm's alone, but those that make Secrets: without Helm pods wait for these meanwhile.
  for made in node-token admin-key certificates-hook; do
    render --show-only "templates/$made.yaml" | sed '/^  annotations:$/d; /^    helm\.sh\/hook/d'
  done
  render --no-hooks
} > "$out/k8s/headrace.yaml"
for values in deploy/k8s/spark-*.values.yaml; do
  name=$(basename "$values" .values.yaml)
  {
    echo "# The Spark jobs of $name.values.yaml as the chart renders them. Made by \`make manifests\`: change those values."
    render --values "$values" --show-only templates/spark-jobs.yaml
  } > "$out/k8s/$name.yaml"
done
if [ "${1:-}" = "--check" ]; then
  differ=0
  diff -r "$out/monitoring" "$chart/monitoring" || differ=1
  for made in "$out"/k8s/*; do diff "$made" "deploy/k8s/$(basename "$made")" || differ=1; done
  if [ $differ = 1 ]; then
    echo "deploy/k8s or the chart's monitoring differ from their sources. Run 'make manifests' and commit the result." >&2
    exit 1
  fi
else
  rm -rf "$chart/monitoring"
  mv "$out/monitoring" "$chart/monitoring"
  mv "$out"/k8s/* deploy/k8s/
fi
