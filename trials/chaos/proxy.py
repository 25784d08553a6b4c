"""A way between the processes and a server that can be cut, or go silent, while the server itself lives on."""

import asyncio
import ctypes
import socket
import struct
from collections.abc import Callable, Coroutine
from contextlib import suppress
from threading import Thread
from typing import Any, TypeVar
from urllib.parse import SplitResult, parse_qs, parse_qsl, urlencode, urlsplit

T = TypeVar("T")
Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]

CHUNK = 65_536
ENDING = 2.0
"""Seconds that connections have to end when the proxy does."""
HOST = "127.0.0.1"
_ATTACH_FILTER = 26
"""Linux: SO_ATTACH_FILTER and SO_DETACH_FILTER of <asm-generic/socket.h>."""
_DETACH_FILTER = 27
_DROP_ALL = struct.pack("HBBI", 0x06, 0, 0, 0)
"""A classic BPF program of one instruction: keep 0 bytes of every packet."""
PORTS = {"postgresql": 5432, "postgres": 5432, "redis": 6379, "amqp": 5672}


class Proxy:
    """Listens on a port of 127.0.0.1 and passes bytes on to the server at an address, in a thread of its own."""

    def __init__(self, url: str) -> None:
        """Begin to listen."""
        self._to = urlsplit(url)
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._open: set[asyncio.StreamWriter] = set()
        self._flowing = self._do(_made(asyncio.Event))
        self._loop.call_soon_threadsafe(self._flowing.set)
        self._port, self._loses_answers = 0, False
        self.restore()

    @property
    def url(self) -> str:
        """Return the address of the server by way of here."""
        user, at, _ = self._to.netloc.rpartition("@")
        query = urlencode([(name, value) for name, value in parse_qsl(self._to.query) if name != "host"])
        return self._to._replace(netloc=f"{user}{at}{HOST}:{self._port}", query=query).geturl()

    def cut(self) -> None:
        """Break every connection and refuse new ones."""
        self._do(self._cut())

    def restore(self) -> None:
        """Accept connections again."""
        self._do(self._listen())

    def silence(self) -> None:
        """Let nothing through, in either direction; connections stay, new ones are accepted and receive nothing."""
        self._loop.call_soon_threadsafe(self._flowing.clear)

    def resume(self) -> None:
        """Let through what has waited, and all that follows."""
        self._loop.call_soon_threadsafe(self._flowing.set)

    def drop(self) -> None:
        """Drop every packet that comes in, as a cut cable does: nothing is acknowledged, new connections neither."""
        self._do(self._filter(is_dropping=True))

    def pick_up(self) -> None:
        """Take packets again."""
        self._do(self._filter(is_dropping=False))

    def lose_answers(self) -> None:
        """Pass on what clients send; break a connection at its next answer, which is lost."""
        self._loses_answers = True

    def find_answers(self) -> None:
        """Pass on answers again."""
        self._loses_answers = False

    def close(self) -> None:
        """End it."""
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._pass_on, HOST, self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def _cut(self) -> None:
        self._server.close()
        for writer in self._open:
            writer.transport.abort()

    async def _filter(self, *, is_dropping: bool) -> None:
        sockets = [writer.get_extra_info("socket") for writer in self._open]
        for each in (*self._server.sockets, *sockets):
            if is_dropping:
                program = ctypes.create_string_buffer(_DROP_ALL)
                each.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, struct.pack("HL", 1, ctypes.addressof(program)))
            else:
                with suppress(FileNotFoundError):
                    each.setsockopt(socket.SOL_SOCKET, _DETACH_FILTER, 0)

    async def _close(self) -> None:
        await self._cut()
        self._flowing.set()
        if others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others, timeout=ENDING)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until either side ends it, which is then the end of both."""
        self._open.add(writer)
        try:
            await self._flowing.wait()
            with suppress(OSError):
                there_reader, there_writer = await _connect(self._to)
                self._open.add(there_writer)
                try:
                    await _first_of(self._pump(reader, there_writer), self._pump(there_reader, writer, is_answer=True))
                finally:
                    self._open.remove(there_writer)
                    there_writer.close()
        finally:
            self._open.remove(writer)
            writer.close()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_answer: bool = False
    ) -> None:
        with suppress(OSError):
            while (chunk := await reader.read(CHUNK)) and not (is_answer and self._loses_answers):
                await self._flowing.wait()
                writer.write(chunk)
                await writer.drain()


async def _first_of(*works: Coroutine[Any, Any, None]) -> None:
    """Do all at once until one has ended, and end the others."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _made(make: Callable[[], T]) -> T:
    return make()


def _connect(url: SplitResult) -> Coroutine[Any, Any, Ends]:
    sockets = parse_qs(url.query).get("host")
    if sockets:
        return asyncio.open_unix_connection(f"{sockets[0]}/.s.PGSQL.{url.port or 5432}")
    return asyncio.open_connection(url.hostname, url.port or PORTS[url.scheme])
