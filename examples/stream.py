"""A stream: text as it is written, every finished step, and finally the answer.

    python examples/stream.py

The base may prove too unsure of its text, so nothing is final before the `Answer` comes. It runs offline.
"""

from cascade import Answer, Orchestrator, Step, TextDelta
from cascade.providers.fake import FakeProvider, Script, reply

SCRIPT: Script = {
    "small": [reply("Reasoning: It is the largest city.\nAnswer: Sydney", logprobs=[-0.2, -0.9])],
    "large": [reply("Reasoning: The seat is inland.\nAnswer: Canberra", logprobs=[-0.01, -0.02])],
}


def main() -> None:
    """Print the events of one question."""
    fake = FakeProvider(SCRIPT)
    ladder = {"kind": "ladder", "models": ["base", "guide"]}
    settings = {"models": {"base": "small", "guide": "large"}, "strategy": ladder, "provider": "fake", "traces": "off"}
    with Orchestrator.from_config(settings, providers={"fake": fake}) as orchestrator:
        for event in orchestrator.stream("What is the capital of Australia?"):
            match event:
                case TextDelta(text=text):
                    print(text, end="", flush=True)
                case Step():
                    print(f"\n[step {event.number}: {event.reason}]")
                case Answer():
                    print(f"answer: {event.text}")


if __name__ == "__main__":
    main()
