"""gpu-check: runs parts, and writes the table, the JSON file and the log after each of them."""
import json
import os
import re
import signal
import subprocess
import tempfile
import time
import traceback

# Most bytes of a part's output in the log: its beginning and its end.
OUTPUT_BYTES = 100_000


class Failed(Exception):
    """A part failed; the text is its reason."""


class Skipped(Exception):
    """A part does not apply to this machine; the text is its reason."""


class Run:
    """Starts the programs of a part, with a common deadline."""

    def __init__(self, limit):
        self.limit, self.deadline, self.output, self.processes = limit, time.monotonic() + limit, "", []

    def start(self, command, **variables):
        """Starts a program in its own process group. Variables are added to the environment."""
        output = tempfile.TemporaryFile()
        environment = {**os.environ, **{name: str(value) for name, value in variables.items()}}
        process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=output,
                                   stderr=subprocess.STDOUT, env=environment, start_new_session=True)
        process.file = output
        self.processes.append(process)
        return process

    def wait(self, process):
        """Waits for a program and returns its exit code."""
        try:
            return process.wait(max(0.0, self.deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise Failed(f"did not end within {self.limit:.0f} s") from None

    def text(self, process):
        process.file.seek(0)
        return process.file.read().decode(errors="replace")

    def all(self, commands):
        """Runs programs `(command, variables)` concurrently and returns their output. All must succeed."""
        processes = [self.start(command, **variables) for command, variables in commands]
        codes = [self.wait(process) for process in processes]
        texts = [self.text(process) for process in processes]
        for code, text in sorted(zip(codes, texts), key=lambda result: result[0] == 0):
            lines = [line for line in text.splitlines() if line.strip()] or ["no output"]
            panicked = [at for at, line in enumerate(lines) if "panicked" in line]
            if panicked:
                raise Failed("a thread panicked: " + " ".join(lines[panicked[0]:panicked[0] + 2])[:250])
            if code != 0:
                raise Failed(f"exit code {code}: {lines[-1][:300]}")
        return texts

    def __call__(self, command, **variables):
        return self.all([(command, variables)])[0]

    def close(self):
        """Ends what still runs and collects the output."""
        for process in self.processes:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
            command = " ".join(map(str, process.args))
            self.output += f"$ {command}\n{self.text(process)}\nexit code {process.returncode}\n"
            process.file.close()


class Report:
    def __init__(self, command, folder, seconds, patience, only):
        self.begun, self.seconds, self.patience, self.only = time.monotonic(), seconds, patience, only
        self.path, self.lines = os.path.join(folder, command), []
        self.data = {"schema": 3, "command": command, "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                     "parts": []}
        os.makedirs(folder, exist_ok=True)
        open(self.path + ".log", "w").close()

    def say(self, line=""):
        print(line, flush=True)
        self.lines.append(line)

    def write(self, name, text):
        with open(name + ".part", "w") as file:
            file.write(text)
        os.replace(name + ".part", name)

    def save(self):
        self.data["seconds"] = round(time.monotonic() - self.begun, 1)
        self.write(self.path + ".json", json.dumps(self.data, indent=1) + "\n")
        self.write(self.path + ".txt", "\n".join(self.lines) + "\n")

    def part(self, name, limit, work):
        """Runs `work(run)` for at most `limit` seconds. Returns its values, a dictionary; `None` unless it passes."""
        if not re.search(self.only, name):
            return None
        begun, left = time.monotonic(), self.seconds - (time.monotonic() - self.begun)
        run, values, result, reason = Run(min(limit * self.patience, left)), None, "passed", ""
        try:
            if left < 5:
                raise Failed("no time left")
            values = work(run) or {}
        except Skipped as skipped:
            result, reason = "skipped", str(skipped)
        except Failed as failed:
            result, reason = "failed", str(failed)
        except Exception as error:
            result, reason = "failed", f"{type(error).__name__}: {error}"
            run.output += traceback.format_exc()
        finally:
            run.close()
        seconds = round(time.monotonic() - begun, 1)
        detail = reason or ", ".join(f"{name} {value}" for name, value in (values or {}).items())
        self.say(f"{name:<36} {result:<8}{seconds:6.1f} s  {detail}".rstrip())
        entry = {"name": name, "result": result, "seconds": seconds}
        self.data["parts"].append({**entry, **(values or {}), **({"reason": reason} if reason else {})})
        with open(self.path + ".log", "a") as log:
            text = run.output
            if len(text) > OUTPUT_BYTES:
                text = f"{text[:OUTPUT_BYTES // 2]}\n[…]\n{text[-OUTPUT_BYTES // 2:]}"
            log.write(f"=== {name}: {result}\n{text}\n")
        self.save()
        return values

    def finish(self):
        """Writes the result and returns the exit code."""
        parts = self.data["parts"]
        failed = [part["name"] for part in parts if part["result"] == "failed"]
        self.data["result"] = "failed" if failed or not parts else "passed"
        self.say()
        self.say(f"{len(parts) - len(failed)} of {len(parts)} parts did not fail" + "".join(f"; {name}" for name in failed))
        self.save()
        return 1 if self.data["result"] == "failed" else 0
