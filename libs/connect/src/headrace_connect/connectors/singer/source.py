"""The source ``singer``: one split, the tap; its position is the tap's last STATE."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Final

from headrace_common.core.errors import InvalidConfig
from headrace_common.runtime.clock import pause_ms
from headrace_connect.connectors.singer.catalog import (
    BadCatalog,
    Catalog,
    find_topic_problems,
    listed,
    topic_name,
)
from headrace_connect.connectors.singer.collecting import Collector, Rules
from headrace_connect.connectors.singer.position import Place
from headrace_connect.connectors.singer.process import TapProcess
from headrace_connect.connectors.singer.repeats import MARKS_MAX
from headrace_connect.connectors.singer.settings import SourceSettings
from headrace_connect.connectors.singer.tap import Tap, TapFailed
from headrace_connect.plugin import Chunk, Position, Source, Split
from headrace_connect.settings import Problem, invalid

_log: Final = logging.getLogger(__name__)
_PREVIEWED: Final = 20


class SingerSource(Source[SourceSettings]):
    """Records of any Singer tap."""

    make_tap: Callable[[SourceSettings], Tap] = staticmethod(lambda of: TapProcess(of.tap_executable, of.limits))

    def __init__(self, settings: SourceSettings) -> None:
        super().__init__(settings)
        self._tap = self.make_tap(settings)

    async def check(self) -> Sequence[str]:
        """See ``Connector``. Runs the tap with ``--discover``."""
        try:
            catalog = await self._find_catalog()
        except (TapFailed, BadCatalog, ValueError, InvalidConfig) as error:
            return [str(error)]
        if catalog is None:
            return []
        _log.info("the tap has %d streams; %s", len(catalog.streams), listed(catalog.names))
        return self._find_problems(catalog)

    async def splits(self) -> Sequence[Split]:
        """One: a tap has one state."""
        return [Split("tap")]

    async def read(self, split: Split, after: Position | None) -> AsyncGenerator[Chunk, None]:
        """
        See ``Source``. The tap is run again ``run.interval.ms`` after it has ended.

        Raises:
            InvalidConfig: the settings cannot be used with this tap, or ``after`` is no position of one.
        """
        try:
            place = Place.of_json(after)
        except ValueError as wrong:
            raise invalid([Problem("", str(wrong))]) from wrong
        config, catalog = await self._prepare()
        while True:
            collector = Collector(place, self._rules(catalog))
            async with aclosing(self._run(collector, config, self._files(place, catalog))) as chunks:
                async for chunk in chunks:
                    yield chunk
            place = collector.place
            if collector.repeats:
                _log.info("%d records were left out: the run before had sent them", collector.repeats)
            for stream in collector.untold:
                _log.warning(
                    "more than %d records of %s have its last bookmark: they may come again", MARKS_MAX, stream
                )
            yield Chunk([], place.to_json(), boundary=True, drained=True)
            await pause_ms(self.settings.run_interval_ms)

    async def preview(self, split: Split) -> AsyncGenerator[Chunk, None]:
        """See ``Source``. The tap is killed when enough is shown."""
        config, catalog = await self._prepare()
        collector = Collector(Place(), self._rules(catalog))
        async with aclosing(self._tap.run(config, self._files(Place(), catalog))) as output:
            async for lines in output:
                for line in lines:
                    collector.feed(line)
                    if collector.ready:
                        yield collector.take()
                    elif collector.open_rows >= _PREVIEWED:
                        yield collector.take_open()
        yield replace(collector.take_open(), drained=True)

    async def _run(
        self, collector: Collector, config: Mapping[str, Any], files: Mapping[str, Any]
    ) -> AsyncGenerator[Chunk, None]:
        """One run of the tap."""
        bytes_max, may_repeat = self.settings.state_bytes_max, self.settings.state_overflow == "repeat"
        async with aclosing(self._tap.run(config, files)) as output:
            async for lines in output:
                for line in lines:
                    collector.feed(line)
                    if collector.open_bytes > bytes_max and not may_repeat:
                        raise InvalidConfig(
                            f"the tap has sent {bytes_max} bytes since its last STATE, and nothing of it can be "
                            "committed: set state.bytes.max higher, or state.overflow=repeat, with which records may "
                            "come again after a failure"
                        )
                if collector.ready:
                    yield collector.take()
                if collector.open_bytes > bytes_max:
                    _log.warning("the tap has sent %d bytes since its last STATE", collector.open_bytes)
                    yield collector.take_open()
        # what comes behind the last STATE of a run that ended well: the tap will not say more of it
        last = collector.take_open()
        if len(last.rows) or last.bad:
            yield last

    async def _prepare(self) -> tuple[Mapping[str, Any], Catalog | None]:
        try:
            config = self.settings.read_config()
            catalog = await self._find_catalog()
        except ValueError as wrong:
            raise invalid([Problem("", str(wrong))]) from wrong
        problems = self._find_problems(catalog) if catalog is not None else []
        if problems:
            raise invalid([Problem("", problem) for problem in problems])
        return config, catalog

    async def _find_catalog(self) -> Catalog | None:
        """
        Raises:
            BadCatalog, ValueError, InvalidConfig, TapFailed: there is none; says why.
        """
        settings = self.settings
        if settings.tap_catalog_file:
            return Catalog.parse(settings.read_catalog())
        if not settings.tap_discover:
            return None
        try:
            return Catalog.parse(await self._tap.discover(settings.read_config()))
        except BadCatalog as wrong:
            raise BadCatalog(
                f"what the tap writes with --discover is no catalog: {wrong}; is tap.discover=false meant?"
            ) from None

    def _find_problems(self, catalog: Catalog) -> list[str]:
        choice = self.settings.choice
        streams = catalog.chosen(choice)
        return catalog.find_problems(choice) + find_topic_problems(self.settings.topic_pattern, streams)

    def _files(self, place: Place, catalog: Catalog | None) -> Mapping[str, Any]:
        settings = self.settings
        files: dict[str, Any] = {}
        if catalog is not None:
            files[f"--{settings.tap_catalog_option}"] = catalog.select(settings.choice)
        if place.state is not None:
            files["--state"] = place.state
        return files

    def _rules(self, catalog: Catalog | None) -> Rules:
        settings, choice = self.settings, self.settings.choice
        taken: dict[str, bool] = {}
        topics: dict[str, str] = {}

        def takes(stream: str) -> bool:
            if stream not in taken:
                taken[stream] = choice.takes(stream) if catalog is None else catalog.takes(stream, choice)
            return taken[stream]

        def topic_of(stream: str) -> str:
            topic = topic_name(settings.topic_pattern, stream)
            other = topics.setdefault(topic, stream)
            if other != stream:
                raise invalid([Problem("", find_topic_problems(settings.topic_pattern, [other, stream])[0])])
            return topic

        bookmarks = catalog.bookmarks(choice) if catalog is not None else {}
        drops = settings.repeats == "drop"
        return Rules(topic_of, takes, settings.types, settings.extra_properties, drops, bookmarks)
