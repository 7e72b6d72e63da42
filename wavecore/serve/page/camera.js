// Images of a camera or a video file, scaled down and sent as JPEG.

const QUALITY = 0.85;

/** Sends what a `video` element shows, at most `fps` times a second, until `stop`. */
export class Source {
  constructor(video, size, fps, send) {
    this.video = video;
    this.canvas = document.createElement("canvas");
    [this.canvas.width, this.canvas.height] = size;
    this.send = send;
    this.busy = false;
    this.timer = setInterval(() => this.grab(), 1000 / fps);
  }

  grab() {
    const { video, canvas } = this;
    if (this.busy || video.readyState < 2 || video.paused) return;
    // The largest part of the picture that has the stream's shape.
    const scale = Math.max(canvas.width / video.videoWidth, canvas.height / video.videoHeight);
    const width = canvas.width / scale;
    const height = canvas.height / scale;
    const [x, y] = [(video.videoWidth - width) / 2, (video.videoHeight - height) / 2];
    canvas.getContext("2d").drawImage(video, x, y, width, height, 0, 0, canvas.width, canvas.height);
    this.busy = true; // no second one behind an image that is still being made
    canvas.toBlob(
      async (blob) => {
        this.busy = false;
        if (blob) this.send(new Uint8Array(await blob.arrayBuffer()));
      },
      "image/jpeg",
      QUALITY,
    );
  }

  stop() {
    clearInterval(this.timer);
    for (const track of this.video.srcObject?.getTracks() ?? []) track.stop();
    this.video.srcObject = null;
    this.video.removeAttribute("src");
  }
}

/** Shows the camera in a `video` element. */
export async function openCamera(video) {
  video.srcObject = await navigator.mediaDevices.getUserMedia({ video: true, audio: false });
  await video.play();
}

/** Shows a video file of the viewer's in a `video` element, again and again. */
export async function openFile(video, file) {
  video.src = URL.createObjectURL(file);
  video.loop = true;
  await video.play();
}
