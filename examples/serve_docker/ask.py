"""Ask a server of bertie to classify texts. It needs no package.

    python examples/serve_docker/ask.py "Friendly staff and fair prices." "The soup was cold."

Without Docker, `bertie serve runs/examples/classify` starts the same server.
"""

import argparse
import json
import urllib.request


def main(texts: list[str], url: str) -> None:
    request = urllib.request.Request(
        f"{url}/v1/predict", json.dumps({"inputs": texts}).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as answer:
        for text, prediction in zip(texts, json.load(answer)["predictions"], strict=True):
            print(f"{prediction['label']:>8}  {text}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="+")
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    main(**vars(parser.parse_args()))
