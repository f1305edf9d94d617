"""`penstock generate`: clicks into a topic, and the same in the background for the demo."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import output
from penstock.cli.session import Session, command

if TYPE_CHECKING:
    from penstock.kafka.admin import Options

app = typer.Typer()


class Feed:
    """The generator in a thread. Leaving the context stops it and raises what went wrong in it."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        *,
        rate: float | None,
        seed: int | None,
        count: int | None = None,
        options: Options | None = None,
    ) -> None:
        self.bootstrap, self.topic = bootstrap, topic
        self._options = options
        self._rate, self._seed, self._count = rate, seed, count
        self._stop = threading.Event()
        self._sent: int | None = None
        self._problem: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="generator", daemon=True)
        self._before = 0

    @classmethod
    def of(
        cls, session: Session, topic: str, *, rate: float | None, seed: int | None, count: int | None = None
    ) -> Feed:
        """Into the broker of the profile."""
        from penstock.kafka.admin import resolve_bootstrap

        kafka = session.settings().kafka
        bootstrap = resolve_bootstrap(None, kafka.bootstrap, session.paths)
        return cls(bootstrap, topic, rate=rate, seed=seed, count=count, options=kafka.options)

    def __enter__(self) -> Feed:
        from penstock.kafka.admin import check_topic

        check_topic(self.bootstrap, self.topic, self._options)
        self._before = self._end()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if kind is None and self._problem is not None:
            raise self._problem

    def _run(self) -> None:
        from penstock.dev import generator

        try:
            self._sent = generator.run(
                self.bootstrap, self.topic, rate=self._rate, seed=self._seed, count=self._count, stop=self._stop
            )
        except Exception as problem:  # noqa: BLE001 - handed to the thread that waits for this one
            self._problem = problem

    def stop(self) -> None:
        """Ask it to end and wait until what was sent is confirmed."""
        self._stop.set()
        self._thread.join()

    def wait(self, seconds: float) -> bool:
        """True when it has ended by itself."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _end(self) -> int:
        from penstock.kafka.admin import end_offsets

        return sum(end_offsets(self.bootstrap, self.topic, self._options).values())

    @property
    def delivered(self) -> int:
        """Clicks that the broker has: counted at the topic while running, confirmed one by one at the end."""
        return self._sent if self._sent is not None else self._end() - self._before


@command(
    app,
    "generate",
    examples=["penstock generate", "penstock generate clicks --rate 500", "penstock generate --count 100000 --rate 0"],
    codes=(0, 2, 4),
    profile=True,
)
def generate(
    session: Session,
    topic: Annotated[str, typer.Argument(help="The topic.")] = "clicks",
    rate: Annotated[float, typer.Option(help="Clicks per second; 0 is as fast as it goes.", min=0)] = 40,
    count: Annotated[
        int | None, typer.Option(help="Stop after so many (default: at Ctrl-C).", min=1, show_default=False)
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="The same seed gives the same clicks (default: new ones).", show_default=False)
    ] = None,
) -> None:
    """Write the clicks of an imaginary shop into a topic of the profile's broker, until --count or Ctrl-C."""
    ui = session.ui
    watch = output.Stopwatch()
    feed = Feed.of(session, topic, rate=rate or None, seed=seed, count=count)
    try:
        with feed, ui.working(f"writing clicks into '{topic}' at {feed.bootstrap}") as step:
            while not feed.wait(1.0):
                if ui.err.is_terminal:
                    step(f"{feed.delivered:,} clicks in '{topic}'; Ctrl-C stops")
    except KeyboardInterrupt:
        _report(session, feed, watch)
        raise
    _report(session, feed, watch)


def _report(session: Session, feed: Feed, watch: output.Stopwatch) -> None:
    if session.ui.is_json:
        session.ui.data({"topic": feed.topic, "delivered": feed.delivered, "seconds": watch.total})
    else:
        session.ui.say(f"{feed.delivered:,} clicks delivered to '{feed.topic}' in {output.span(watch.total)}.")
