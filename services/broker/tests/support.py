"""What the broker's tests share."""

from services.broker.tests.kit.cluster import BROKER_ID, FakeCluster, image_of, topic_id_of
from services.broker.tests.kit.dialogue import running_broker, serving_broker

__all__ = ["BROKER_ID", "FakeCluster", "image_of", "running_broker", "serving_broker", "topic_id_of"]
