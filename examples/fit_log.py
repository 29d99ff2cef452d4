"""Learn a policy from a log, check its certificate, and read the directory again.

    python examples/fit_log.py

The log ships with the package: two real local models. It is read as a ladder, the base outright, then the guide
outright, so the example runs offline. On the command line it is `cascade fit`, and `policy: ./policy` in the
configuration.
"""

import tempfile

import cascade


def main() -> None:
    """Print what is promised, write the policy directory, and verify it."""
    log = cascade.open_log("demo-ladder")
    fitted = cascade.fit(log, cascade.Promise("coverage", 0.1))
    print(fitted)
    with tempfile.TemporaryDirectory() as folder:
        fitted.save(f"{folder}/policy")
        print(cascade.verify(f"{folder}/policy", log))
        for certificate in cascade.PolicyDirectory.read(f"{folder}/policy").certificates.values():
            print(certificate.statement())


if __name__ == "__main__":
    main()
