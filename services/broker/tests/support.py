"""What the broker's tests share."""

from services.broker.tests.kit.standalone import (
    BROKER_ID,
    FakeCluster,
    image_of,
    running_broker,
    standalone_broker,
    topic_id_of,
)

__all__ = ["BROKER_ID", "FakeCluster", "image_of", "running_broker", "standalone_broker", "topic_id_of"]
