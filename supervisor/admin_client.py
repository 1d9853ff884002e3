"""The command line's side of admin.sock."""

import msgspec
import zmq

from shardpool import control
from shardpool.control import Refused, Reply, Request
from shardpool.exit_codes import ExitCode
from shardpool.runtime_dir import RunDir
from shardpool.supervisor.refusal import Refusal


def ask_supervisor(run_dir: RunDir, pid: int, request: Request, timeout: float) -> Reply:
    """Send one request to a running pool and return its reply.

    Args: run_dir, pid: of the pool, as runtime_dir.find returns them; timeout: seconds.
    Raises: Refusal (NO_ANSWER) when it does not answer in time, or not in this version's words.
    """
    with zmq.Context(1) as context, context.socket(zmq.DEALER) as socket:
        socket.set(zmq.LINGER, 0)
        socket.connect(run_dir.admin)
        socket.send(control.encode(request))
        if not socket.poll(int(timeout * 1000), zmq.POLLIN):
            raise Refusal(
                f"the pool in {run_dir.path} (supervisor pid {pid}) did not answer within {timeout:g} s",
                f"look what it does, or end it with kill -9 {pid} (its workers end with it)",
                ExitCode.NO_ANSWER,
            )
        body = socket.recv_multipart()[-1]
    try:
        reply = control.decode_reply(body)
    except msgspec.DecodeError as error:
        raise Refusal(
            f"the pool's answer is not of this version: {error}", "restart the pool", ExitCode.NO_ANSWER
        ) from None
    if isinstance(reply, Refused):
        raise Refusal(f"the pool refused: {reply.reason}", reply.remedy, ExitCode(reply.exit_code))
    return reply
