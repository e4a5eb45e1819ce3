"""A server that gives every request one answer: for what a real S3 server cannot be made to say."""
import http.server
import socket
import socketserver
import threading


def error(code, message, extra=""):
    """The body of an S3 error, as AWS documents it."""
    return (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>{message}</Message>{extra}'
        "<RequestId>4442587FB7D0A2F9</RequestId></Error>"
    ).encode()


class Http:
    """Answers every request with `status` and `body`."""

    def __init__(self, status, body, kind="application/xml"):
        class Handler(http.server.BaseHTTPRequestHandler):
            def answer(self):
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = answer

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()


class Tcp(Http):
    """Says `greeting` to whoever connects and then nothing more, or hangs up."""

    def __init__(self, greeting, hang_up=True):
        class Handler(socketserver.BaseRequestHandler):
            def handle(self):
                self.request.sendall(greeting)
                if not hang_up:
                    while self.request.recv(65536):
                        pass

        self.server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


def unused_port():
    """A port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
