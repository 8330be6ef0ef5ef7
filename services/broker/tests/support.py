"""What the broker's tests share."""

from headrace_broker.testing.standalone import (
    BROKER_ID,
    FakeCluster,
    image_of,
    running_broker,
    standalone_broker,
    topic_id_of,
)

__all__ = ["BROKER_ID", "FakeCluster", "image_of", "running_broker", "standalone_broker", "topic_id_of"]
