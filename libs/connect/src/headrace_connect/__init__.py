"""Connectors: other systems' data into topics, and topics into other systems."""

from headrace_common.core.errors import InvalidConfig as InvalidConfig
from headrace_connect.plugin import BadItem as BadItem
from headrace_connect.plugin import Chunk as Chunk
from headrace_connect.plugin import Event as Event
from headrace_connect.plugin import Guarantee as Guarantee
from headrace_connect.plugin import PartitionTaken as PartitionTaken
from headrace_connect.plugin import Position as Position
from headrace_connect.plugin import RetriableError as RetriableError
from headrace_connect.plugin import Rows as Rows
from headrace_connect.plugin import RowsRefused as RowsRefused
from headrace_connect.plugin import Sink as Sink
from headrace_connect.plugin import Source as Source
from headrace_connect.plugin import Split as Split
from headrace_connect.plugin import sink as sink
from headrace_connect.plugin import source as source
from headrace_connect.settings import Secret as Secret
from headrace_connect.settings import setting as setting
