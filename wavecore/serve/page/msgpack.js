// MessagePack (https://github.com/msgpack/msgpack/blob/master/spec.md), as far as the protocol uses it: nil,
// booleans, numbers, text, bytes, arrays and maps with text keys.

const utf8 = new TextEncoder();
const text = new TextDecoder("utf-8", { fatal: true });

/** Encodes a value; whole numbers up to 2^53 become integers, Uint8Array becomes bytes. */
export function encode(value) {
  const out = [];
  write(value, out);
  let size = 0;
  for (const part of out) size += part.length;
  const bytes = new Uint8Array(size);
  let at = 0;
  for (const part of out) {
    bytes.set(part, at);
    at += part.length;
  }
  return bytes;
}

function write(value, out) {
  if (value === null || value === undefined) out.push([0xc0]);
  else if (value === false) out.push([0xc2]);
  else if (value === true) out.push([0xc3]);
  else if (typeof value === "number") writeNumber(value, out);
  else if (typeof value === "string") {
    const bytes = utf8.encode(value);
    writeHead(bytes.length, 0xa0, 31, [0xd9, 0xda, 0xdb], out);
    out.push(bytes);
  } else if (value instanceof Uint8Array) {
    writeHead(value.length, 0, -1, [0xc4, 0xc5, 0xc6], out);
    out.push(value);
  } else if (Array.isArray(value)) {
    writeHead(value.length, 0x90, 15, [null, 0xdc, 0xdd], out);
    for (const item of value) write(item, out);
  } else {
    const entries = Object.entries(value).filter(([, item]) => item !== undefined);
    writeHead(entries.length, 0x80, 15, [null, 0xde, 0xdf], out);
    for (const [key, item] of entries) {
      write(key, out);
      write(item, out);
    }
  }
}

/** Length of text, bytes, an array or a map: in the first byte, or in one, two or four bytes behind it. */
function writeHead(length, fixed, most, [one, two, four], out) {
  if (length <= most) out.push([fixed | length]);
  else if (one !== null && length < 0x100) out.push([one, length]);
  else if (length < 0x10000) out.push([two, length >> 8, length & 255]);
  else out.push([four, ...big(length, 4)]);
}

function writeNumber(value, out) {
  if (Number.isSafeInteger(value) && !Object.is(value, -0)) {
    if (value >= 0 && value < 128) out.push([value]);
    else if (value < 0 && value >= -32) out.push([value & 255]);
    else out.push([value < 0 ? 0xd3 : 0xcf, ...big(value, 8)]);
  } else {
    const view = new DataView(new ArrayBuffer(9));
    view.setUint8(0, 0xcb);
    view.setFloat64(1, value);
    out.push(new Uint8Array(view.buffer));
  }
}

function big(value, size) {
  const view = new DataView(new ArrayBuffer(8));
  view.setBigInt64(0, BigInt(value));
  return new Uint8Array(view.buffer, 8 - size);
}

/** Decodes one value; bytes are a view of the buffer. */
export function decode(buffer) {
  const bytes = buffer instanceof Uint8Array ? buffer : new Uint8Array(buffer);
  const reader = new Reader(bytes);
  const value = reader.read();
  if (reader.at !== bytes.length) throw new RangeError("msgpack: bytes left over");
  return value;
}

class Reader {
  constructor(bytes) {
    this.bytes = bytes;
    this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    this.at = 0;
  }

  take(size) {
    const at = this.at;
    if (at + size > this.bytes.length) throw new RangeError("msgpack: ends too soon");
    this.at += size;
    return at;
  }

  unsigned(size) {
    const at = this.take(size);
    if (size === 1) return this.view.getUint8(at);
    if (size === 2) return this.view.getUint16(at);
    if (size === 4) return this.view.getUint32(at);
    return Number(this.view.getBigUint64(at));
  }

  signed(size) {
    const at = this.take(size);
    if (size === 1) return this.view.getInt8(at);
    if (size === 2) return this.view.getInt16(at);
    if (size === 4) return this.view.getInt32(at);
    return Number(this.view.getBigInt64(at));
  }

  data(size) {
    const at = this.take(size);
    return this.bytes.subarray(at, at + size);
  }

  array(size) {
    return Array.from({ length: size }, () => this.read());
  }

  map(size) {
    const map = {};
    for (let i = 0; i < size; i++) {
      const key = this.read();
      map[key] = this.read();
    }
    return map;
  }

  read() {
    const head = this.unsigned(1);
    if (head < 0x80) return head;
    if (head < 0x90) return this.map(head & 15);
    if (head < 0xa0) return this.array(head & 15);
    if (head < 0xc0) return text.decode(this.data(head & 31));
    if (head >= 0xe0) return head - 0x100;
    switch (head) {
      case 0xc0: return null;
      case 0xc2: return false;
      case 0xc3: return true;
      case 0xc4: case 0xc5: case 0xc6: return this.data(this.unsigned(1 << (head - 0xc4)));
      case 0xca: return this.view.getFloat32(this.take(4));
      case 0xcb: return this.view.getFloat64(this.take(8));
      case 0xcc: case 0xcd: case 0xce: case 0xcf: return this.unsigned(1 << (head - 0xcc));
      case 0xd0: case 0xd1: case 0xd2: case 0xd3: return this.signed(1 << (head - 0xd0));
      case 0xd9: case 0xda: case 0xdb: return text.decode(this.data(this.unsigned(1 << (head - 0xd9))));
      case 0xdc: case 0xdd: return this.array(this.unsigned(2 << (head - 0xdc)));
      case 0xde: case 0xdf: return this.map(this.unsigned(2 << (head - 0xde)));
      default: throw new RangeError(`msgpack: type 0x${head.toString(16)} is not in use`);
    }
  }
}
