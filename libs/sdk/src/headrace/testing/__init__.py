"""
For tests of programs that use Headrace: pytest fixtures with a cluster. pytest finds them when ``headrace`` is installed.

``headrace_cluster`` is a real cluster in processes of its own, ``headrace_memory`` a small one in this process::

    def test_orders_arrive(headrace_cluster):
        with headrace.Producer(headrace_cluster.bootstrap_servers) as producer:
            producer.send("orders", b"one").result(timeout=10)
"""
