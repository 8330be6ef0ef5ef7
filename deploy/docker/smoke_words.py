"""The program that ``smoke.sh`` runs in the image of streams: counts words."""

from headrace.streams import App, agg, col, string

app = App("smoke-words")
words = app.stream("smoke-lines", value=string).select(word=col("value").str.split(" ")).explode("word")
words.group_by("word", name="by-word").agg(n=agg.count(), name="counts").to("smoke-counts")
