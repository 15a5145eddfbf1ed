"""Spans made of traces and sent: the one place that imports OpenTelemetry."""

import logging
import os
from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

import kvikk
from kvikk.server.tracing.record import RequestTrace


class SpanSender:
    """Sends the spans of some requests at a time to ``endpoint``. One thread owns it.

    ``last_words`` are the exporter's, which has a line for each of its tries.
    """

    def __init__(self, endpoint: str) -> None:
        own = {"service.version": kvikk.__version__}
        if "OTEL_SERVICE_NAME" not in os.environ:
            own["service.name"] = "kvikk"
        self._ended = _Ended()
        provider = TracerProvider(resource=Resource.create(own), shutdown_on_exit=False)
        provider.add_span_processor(self._ended)
        self._tracer = provider.get_tracer("kvikk", kvikk.__version__)
        self._parents = TraceContextTextMapPropagator()
        self._exporter = OTLPSpanExporter(endpoint)
        self._words = _LastWords()
        exporter_logger = logging.getLogger(OTLPSpanExporter.__module__)
        exporter_logger.addHandler(self._words)
        exporter_logger.propagate = False

    @property
    def last_words(self) -> str:
        """Why the last sending failed, if one did."""
        return self._words.text

    def send(self, traces: Sequence[RequestTrace]) -> bool:
        """Whether all arrived; tries for ten seconds, or OTEL_EXPORTER_OTLP_TRACES_TIMEOUT."""
        for trace in traces:
            self._make(trace)
        spans = self._ended.take()
        return not spans or self._exporter.export(spans) is SpanExportResult.SUCCESS

    def close(self) -> None:
        """Try no more; may be called in any thread."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def _make(self, trace: RequestTrace) -> None:
        span = self._tracer.start_span(
            trace.name,
            self._parents.extract(trace.context),
            SpanKind.SERVER,
            {
                "gen_ai.operation.name": trace.operation,
                "gen_ai.provider.name": "kvikk",
                **trace.attributes,
            },
            start_time=trace.began_ns,
        )
        if trace.error is not None:
            span.set_attribute("error.type", trace.error)
            span.set_status(Status(StatusCode.ERROR))
        inside = set_span_in_context(span)
        for name, began_ns, ended_ns in trace.phases:
            self._tracer.start_span(name, inside, start_time=began_ns).end(ended_ns)
        span.end(trace.ended_ns)


class _Ended(SpanProcessor):
    """Collects the spans that are sampled."""

    def __init__(self) -> None:
        self._spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        """One more."""
        if span.context is not None and span.context.trace_flags.sampled:
            self._spans.append(span)

    def take(self) -> list[ReadableSpan]:
        """All since the last time."""
        spans, self._spans = self._spans, []
        return spans


class _LastWords(logging.Handler):
    """Keeps what was logged last."""

    text = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it."""
        self.text = record.getMessage()
