"""Ask the service about a picture with OpenAI's Python client: pip install openai

python picture.py             # the picture of the usage guide, which the engine downloads
python picture.py receipt.png "What does it cost?"   # a file of yours, or another address
"""

import base64
import mimetypes
import os
import sys
import time
from pathlib import Path

from openai import OpenAI

# The address of the service, its model, and the variable that holds its key ("": none is asked for).
SERVICE, MODEL, KEY = "http://localhost:8000/v1", "moonshotai/Kimi-K2.5", ""
PICTURE = (
    "https://ofasys-multimodal-wlcb-3-toshanghai.oss-accelerate.aliyuncs.com"
    "/wpf272043/keepme/image/receipt.png"
)
QUESTION = "Read all the text in the image."


def address(picture):
    """Return the address of a picture; a file becomes a data URL."""
    if picture.startswith(("http://", "https://", "data:")):
        return picture
    kind = mimetypes.guess_type(picture)[0] or "image/png"
    return f"data:{kind};base64,{base64.b64encode(Path(picture).read_bytes()).decode()}"


def main(picture=PICTURE, question=QUESTION):
    """Print what the model says about a picture, and how long that took."""
    if KEY and KEY not in os.environ:
        sys.exit(f"Set {KEY} before you start.")
    client = OpenAI(api_key=(os.environ[KEY] if KEY else "EMPTY"), base_url=SERVICE, timeout=3600)
    content = [
        {"type": "image_url", "image_url": {"url": address(picture)}},
        {"type": "text", "text": question},
    ]
    start = time.time()
    response = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": content}], max_tokens=2048
    )
    print(f"Response costs: {time.time() - start:.2f}s")
    print(f"Generated text: {response.choices[0].message.content}")


if __name__ == "__main__":
    main(*sys.argv[1:])
