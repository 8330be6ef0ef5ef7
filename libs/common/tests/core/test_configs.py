"""Settings: Kafka's names, defaults and bounds, what a refusal says, and what holds for a topic in the end."""

from __future__ import annotations

import pytest

from headrace_common.core.configs import (
    BROKER_SETTINGS,
    LONG_MAX,
    TOPIC_DEFAULT_FROM,
    TOPIC_SETTINGS,
    TopicConfig,
    check_broker_configs,
    check_lags,
    check_topic_configs,
)
from headrace_common.core.errors import InvalidConfig
from headrace_common.core.features import HIGHEST, REQUIRED_FENCES

WEEK = "604800000"
DAY = "86400000"
GIB = str(1 << 30)
FOR_EVER = str(LONG_MAX)


@pytest.mark.parametrize(
    ("name", "value", "bounds"),
    [
        ("min.insync.replicas", "0", "1 to 2147483647"),
        ("retention.ms", "-2", "-1 to 9223372036854775807"),
        ("min.cleanable.dirty.ratio", "1.01", "0 to 1"),
    ],
)
def test_bounds_are_written_as_one_would_type_them(name: str, value: str, bounds: str) -> None:
    with pytest.raises(InvalidConfig, match=f"{name} takes {bounds}, not {value}"):
        check_topic_configs({name: value}, HIGHEST)


class TestAsDocumentedByKafka:
    """Name, type, default and lower bound, where it documents one."""

    @pytest.mark.parametrize(
        ("name", "type_", "default", "low"),
        [
            ("cleanup.policy", "list", "delete", None),
            ("delete.retention.ms", "long", DAY, 0),
            ("max.compaction.lag.ms", "long", FOR_EVER, 1),
            ("max.message.bytes", "int", "1048588", 0),
            ("min.cleanable.dirty.ratio", "double", "0.5", 0),
            ("min.compaction.lag.ms", "long", "0", 0),
            ("retention.bytes", "long", "-1", -1),
            ("retention.ms", "long", WEEK, -1),
            ("segment.bytes", "int", GIB, 1024),
            ("segment.jitter.ms", "long", "0", 0),
            ("segment.ms", "long", WEEK, 1),
        ],
    )
    def test_of_topics(self, name: str, type_: str, default: str, low: int | None) -> None:
        setting = TOPIC_SETTINGS[name]
        assert (setting.type.value, setting.default, setting.low) == (type_, default, low)

    @pytest.mark.parametrize(
        ("name", "type_", "default", "low"),
        [
            ("log.cleaner.backoff.ms", "long", "15000", 0),
            ("log.cleaner.dedupe.buffer.size", "long", "134217728", 1 << 20),
            ("log.cleaner.delete.retention.ms", "long", DAY, 0),
            ("log.cleaner.enable", "boolean", "true", None),
            ("log.cleaner.io.max.bytes.per.second", "double", FOR_EVER, 1024),
            ("log.cleaner.max.compaction.lag.ms", "long", FOR_EVER, 1),
            ("log.cleaner.min.cleanable.ratio", "double", "0.5", 0),
            ("log.cleaner.min.compaction.lag.ms", "long", "0", 0),
            ("log.cleanup.policy", "list", "delete", None),
            ("log.retention.bytes", "long", "-1", -1),
            ("log.retention.check.interval.ms", "long", "300000", 1),
            ("log.retention.ms", "long", WEEK, -1),
            ("log.roll.jitter.ms", "long", "0", 0),
            ("log.roll.ms", "long", WEEK, 1),
            ("log.scrub.enable", "boolean", "true", None),
            ("log.scrub.interval.ms", "long", WEEK, 1),
            ("log.scrub.max.bytes.per.second", "long", str(8 << 20), 1024),
            ("log.segment.bytes", "int", GIB, 1024),
            ("message.max.bytes", "int", "1048588", 0),
            ("offsets.topic.segment.bytes", "int", "104857600", 1024),
            ("transaction.state.log.segment.bytes", "int", "104857600", 1024),
        ],
    )
    def test_of_brokers(self, name: str, type_: str, default: str, low: int | None) -> None:
        setting = BROKER_SETTINGS[name]
        assert (setting.type.value, setting.default, setting.low) == (type_, default, low)
        assert setting.dynamic

    def test_every_default_is_a_value_that_could_be_set(self) -> None:
        for setting in (*TOPIC_SETTINGS.values(), *BROKER_SETTINGS.values()):
            assert setting.check(setting.default) == setting.default

    def test_a_topic_and_what_it_inherits_take_the_same(self) -> None:
        for topic, broker in TOPIC_DEFAULT_FROM.items():
            own, default = TOPIC_SETTINGS[topic], BROKER_SETTINGS[broker]
            assert (own.type, own.default, own.low, own.high, own.choices) == (
                default.type,
                default.default,
                default.low,
                default.high,
                default.choices,
            )


class TestValues:
    @pytest.mark.parametrize("value", ["1_000", "١٠", "0x10", "1e3", "", "ten", "1.0", "9" * 40])
    def test_a_whole_number_is_digits(self, value: str) -> None:
        with pytest.raises(InvalidConfig, match=r"retention\.ms takes"):
            check_topic_configs({"retention.ms": value}, HIGHEST)

    @pytest.mark.parametrize("value", ["nan", "inf", "-0.1", "half"])
    def test_a_ratio_is_a_number_from_0_to_1(self, value: str) -> None:
        with pytest.raises(InvalidConfig, match=r"min\.cleanable\.dirty\.ratio takes"):
            check_topic_configs({"min.cleanable.dirty.ratio": value}, HIGHEST)

    @pytest.mark.parametrize(
        ("given", "stored"),
        [("compact", "compact"), (" compact , delete ", "compact,delete"), ("delete,compact,delete", "delete,compact")],
    )
    def test_policies_keep_their_order(self, given: str, stored: str) -> None:
        assert check_topic_configs({"cleanup.policy": given}, HIGHEST) == {"cleanup.policy": stored}

    @pytest.mark.parametrize("given", ["", ",", "compact;delete", "Compact", "none"])
    def test_policies_that_there_are_not(self, given: str) -> None:
        with pytest.raises(InvalidConfig, match=r"cleanup\.policy"):
            check_topic_configs({"cleanup.policy": given}, HIGHEST)

    def test_kafkas_default_of_the_cleaners_bound_can_be_set(self) -> None:
        assert check_broker_configs({"log.cleaner.io.max.bytes.per.second": "1.7976931348623157E308"})
        with pytest.raises(InvalidConfig, match=r"1024 to 1\.79769e\+308, not 12"):
            check_broker_configs({"log.cleaner.io.max.bytes.per.second": "12"})


class TestFeatures:
    def test_a_setting_that_came_with_a_feature_waits_for_its_level(self) -> None:
        below, given = REQUIRED_FENCES.level - 1, {"fencing.required": "True", "retention.ms": "never"}
        with pytest.raises(
            InvalidConfig, match=rf"needs feature level 5 and the cluster is at {below}; .*retention\.ms"
        ):
            check_topic_configs(given, below)
        del given["retention.ms"]
        assert check_topic_configs(given, REQUIRED_FENCES.level) == {"fencing.required": "true"}

    def test_topics_require_no_token_unless_told(self) -> None:
        assert not TopicConfig.effective({}, {}).fencing_required
        assert TopicConfig.effective({"fencing.required": "true"}, {}).fencing_required


class TestNames:
    @pytest.mark.parametrize(
        ("name", "hint"),
        [
            ("retention.mss", r"is retention\.ms meant\?"),
            ("log.retention.ms", r"for one topic it is retention\.ms"),
            ("log.cleaner.backoff.ms", "is a broker setting"),
            ("flush.messages", "is not a topic setting$"),
        ],
    )
    def test_of_topics(self, name: str, hint: str) -> None:
        with pytest.raises(InvalidConfig, match=hint):
            check_topic_configs({name: "1"}, HIGHEST)

    @pytest.mark.parametrize(
        ("name", "hint"),
        [
            ("log.retention.hours", r"is log\.retention\.ms meant\?"),
            ("retention.ms", r"the default of all topics is log\.retention\.ms"),
            ("message.timestamp.type", "is a topic setting"),
            ("zookeeper.connect", "is not a broker setting$"),
        ],
    )
    def test_of_brokers(self, name: str, hint: str) -> None:
        with pytest.raises(InvalidConfig, match=hint):
            check_broker_configs({name: "1"})

    def test_what_one_broker_cannot_have_for_itself(self) -> None:
        assert check_broker_configs({"log.cleanup.policy": "compact"}) == {"log.cleanup.policy": "compact"}
        with pytest.raises(InvalidConfig, match="the same for all brokers"):
            check_broker_configs({"log.cleanup.policy": "compact"}, one_broker=True)


class TestEffective:
    def test_own_over_the_clusters_over_the_default(self) -> None:
        cluster = {"log.retention.ms": "7", "log.roll.jitter.ms": "5", "log.cleaner.min.cleanable.ratio": "0.2"}
        config = TopicConfig.effective({"retention.ms": "3"}, cluster)
        assert (config.retention_ms, config.segment_jitter_ms, config.dirty_ratio_min) == (3, 5, 0.2)
        assert config.segment_ms == int(WEEK)

    @pytest.mark.parametrize(
        ("policy", "compacts", "retention_ms"),
        [("delete", False, 3), ("compact", True, -1), ("compact,delete", True, 3), ("delete,compact", True, 3)],
    )
    def test_what_the_policy_switches(self, policy: str, compacts: bool, retention_ms: int) -> None:
        own = {"cleanup.policy": policy, "retention.ms": "3", "retention.bytes": "9"}
        config = TopicConfig.effective(own, {})
        assert (config.compacts, config.retention_ms) == (compacts, retention_ms)
        assert config.retention_bytes == (9 if retention_ms == 3 else -1)

    def test_a_lag_that_no_record_can_meet(self) -> None:
        check_lags({}, {})
        check_lags({"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "5"}, {})
        with pytest.raises(InvalidConfig, match=r"log\.cleaner\.min\.compaction\.lag\.ms=6 is above max"):
            check_lags({"max.compaction.lag.ms": "5"}, {"log.cleaner.min.compaction.lag.ms": "6"})
