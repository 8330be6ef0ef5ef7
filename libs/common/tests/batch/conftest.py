"""Property tests decode thousands of batches; the first example also loads pyarrow, so no example has a deadline."""

from hypothesis import settings

settings.register_profile("batch", deadline=None)
settings.load_profile("batch")
