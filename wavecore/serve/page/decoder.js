// Frames from bytes: H.264 through WebCodecs, JPEG through createImageBitmap.

/** Whether this browser decodes H.264 here (WebCodecs needs https or localhost). */
export async function bestCodec() {
  if (typeof VideoDecoder === "undefined") return "jpeg";
  const { supported } = await VideoDecoder.isConfigSupported({ codec: "avc1.42C01E" }).catch(() => ({}));
  return supported ? "h264" : "jpeg";
}

/**
 * Decodes in order; `output(frame, image)` gets each header with an image to draw and close, and
 * `failed(error, number)` the number of the latest frame when the decoder gave up.
 */
export class FrameDecoder {
  constructor(started, output, failed) {
    this.output = output;
    this.failed = failed;
    this.headers = new Map();
    this.next = Promise.resolve();
    if (started.codec !== "h264") return;
    this.config = { codec: started.decoder, optimizeForLatency: true };
    this.open();
  }

  open() {
    this.video = new VideoDecoder({
      output: (image) => {
        const header = this.headers.get(image.timestamp);
        this.headers.delete(image.timestamp);
        if (header) this.output(header, image);
        else image.close();
      },
      error: (error) => {
        this.headers.clear();
        this.failed(error, this.latest);
      },
    });
    this.video.configure(this.config);
    this.needsKey = true;
  }

  push(header) {
    this.latest = header.number;
    if (!this.config) {
      const bitmap = createImageBitmap(new Blob([header.data], { type: "image/jpeg" }));
      const failed = (error) => this.failed(error, header.number);
      this.next = this.next.then(() => bitmap).then((image) => this.output(header, image), failed);
      return;
    }
    if (this.video.state === "closed") this.open(); // after an error: on from the next key frame
    if (this.needsKey && !header.key) return;
    this.needsKey = false;
    this.headers.set(header.number, header);
    this.video.decode(
      new EncodedVideoChunk({
        type: header.key ? "key" : "delta",
        timestamp: header.number, // only tells frames apart
        data: header.data,
      }),
    );
  }

  close() {
    if (this.video && this.video.state !== "closed") this.video.close();
    this.headers.clear();
  }
}
