"""A stream: text as it is written, every finished step, and at last the answer.

    python examples/stream.py

A base's text may still be judged wrong, so nothing is final before the `Answer` comes. It runs offline.
"""

from cascade import Answer, Orchestrator, Step, TextDelta
from cascade.providers.fake import FakeProvider, Script, reply

SCRIPT: Script = {
    "small": ["Reasoning: It is the capital.\nAnswer: Sydney", "Reasoning: The seat is inland.\nAnswer: Canberra"],
    "large": [reply("No, Canberra", p_yes=0.45), reply("Yes", p_yes=0.99)],
}


def main() -> None:
    """Print the events of one question."""
    fake = FakeProvider(SCRIPT)
    settings = {"models": {"base": "small", "guide": "large"}, "provider": "fake"}
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
