"""A small client of a language server: what an editor would show at a place of a text.

The Language Server Protocol sends JSON over the standard streams of the server, each message behind its length in bytes
(https://microsoft.github.io/language-server-protocol).
"""

import json
import subprocess


class Server:
    """A language server of Python, and the folder that it has opened."""

    def __init__(self, command, folder):
        """`folder` has the settings, such as pyrightconfig.json."""
        self.folder, self.number, self.documents = folder, 0, 0
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=folder
        )
        uri = folder.as_uri()
        capabilities = {"workspace": {"configuration": False}, "textDocument": {"hover": {"contentFormat": ["plaintext"]}}}
        folders = [{"uri": uri, "name": folder.name}]
        self.ask("initialize", {"processId": None, "rootUri": uri, "capabilities": capabilities, "workspaceFolders": folders})
        self.tell("initialized", {})

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()

    def tell(self, method, parameters, **more):
        """Send a message that is not answered."""
        text = json.dumps({"jsonrpc": "2.0", "method": method, "params": parameters, **more}).encode()
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(text), text))
        self.process.stdin.flush()

    def ask(self, method, parameters):
        """Send a request, and return its result."""
        self.number += 1
        self.tell(method, parameters, id=self.number)
        while True:
            message = self.next()
            if message.get("id") == self.number and "method" not in message:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]

    def next(self):
        """The server's next message."""
        length = None
        while True:
            line = self.process.stdout.readline()
            if not line:
                raise RuntimeError("the language server has ended")
            if line == b"\r\n":
                return json.loads(self.process.stdout.read(length))
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)

    def at(self, text):
        """Open `text` as a file; a place for questions, where `|` stands in it."""
        before, _, after = text.rpartition("|")
        self.documents += 1
        uri = (self.folder / f"open_{self.documents}.py").as_uri()
        document = {"uri": uri, "languageId": "python", "version": 1, "text": before + after}
        self.tell("textDocument/didOpen", {"textDocument": document})
        line = before.count("\n")
        return {"textDocument": {"uri": uri}, "position": {"line": line, "character": len(before.rpartition("\n")[2])}}

    def completions(self, text):
        """What an editor offers where `|` stands."""
        found = self.ask("textDocument/completion", self.at(text))
        return {item["label"] for item in (found["items"] if isinstance(found, dict) else found)}

    def hover(self, text):
        """What an editor shows of the name before `|`."""
        place = self.at(text)
        place["position"]["character"] -= 1
        found = self.ask("textDocument/hover", place)
        return found["contents"]["value"] if found else ""
