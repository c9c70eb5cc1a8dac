package pgarchive

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// Format of an object; DESIGN.md has it in words.
const (
	magic        = "berthpg"
	format       = 1
	codecZstd    = 1
	saltBytes    = 32
	preambleSize = 7 + 2 + saltBytes // magic, format, codec, salt
	tagBytes     = 16

	chunkBytes = 1 << 20
	maxHeader  = 8 << 10
	// zstd adds little to what it cannot compress.
	maxFrame = chunkBytes + chunkBytes/64 + 1024
	// maxHead bounds an object's bytes up to the end of its header.
	maxHead = preambleSize + 4 + maxHeader + tagBytes
	// lastFrame is set in the size of an object's last frame.
	lastFrame = 1 << 31
)

// keyInfo binds the keys of objects to what they are for.
const keyInfo = "berth pgarchive object"

var codec = sync.OnceValues(func() (*zstd.Encoder, *zstd.Decoder) {
	enc, err1 := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithWindowSize(chunkBytes), zstd.WithEncoderCRC(false))
	dec, err2 := zstd.NewReader(nil, zstd.WithDecoderMaxMemory(chunkBytes), zstd.WithDecoderMaxWindow(chunkBytes))
	if err := errors.Join(err1, err2); err != nil {
		panic(err) // the options are constants
	}
	return enc, dec
})

// frames seals or opens the frames of one object, in their order.
type frames struct {
	aead cipher.AEAD
	aad  []byte
	n    uint32 // of the next frame
}

// newFrames derives the object's own key. The salt is random, so that no key is used
// for two contents, and no nonce twice.
func (a *Archive) newFrames(object string, preamble []byte) (*frames, error) {
	salt := preamble[len(preamble)-saltBytes:]
	key, err := hkdf.Key(sha256.New, a.key, salt, keyInfo, keyBytes)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return nil, err
	}
	return &frames{aead: aead, aad: append(bytes.Clone(preamble), a.name+"/"+object...)}, nil
}

// nonce has the frame's number, and whether it is the last: frames that are left out,
// moved or cut off at the end do not open.
func (f *frames) nonce(last bool) []byte {
	nonce := make([]byte, f.aead.NonceSize())
	binary.BigEndian.PutUint32(nonce[len(nonce)-5:], f.n)
	if last {
		nonce[len(nonce)-1] = 1
	}
	f.n++
	return nonce
}

// sealer makes an object: a header, and chunks of content.
type sealer struct {
	*frames
	raw    []byte
	packed []byte
}

// seal begins an object. One without content has its header as its last frame.
func (a *Archive) seal(object string, header any, last bool) (*sealer, error) {
	doc, err := json.Marshal(header)
	if err != nil {
		return nil, err
	}
	if len(doc) > maxHeader {
		return nil, fmt.Errorf("a header of %d bytes", len(doc))
	}
	raw := append([]byte(magic), format, codecZstd)
	raw = append(raw, make([]byte, saltBytes)...)
	rand.Read(raw[len(raw)-saltBytes:]) // never fails: crypto/rand ends the process first
	f, err := a.newFrames(object, raw)
	if err != nil {
		return nil, err
	}
	s := &sealer{frames: f, raw: raw}
	s.frame(doc, last)
	return s, nil
}

// chunk adds at most chunkBytes of content.
func (s *sealer) chunk(plain []byte, last bool) {
	enc, _ := codec()
	s.packed = enc.EncodeAll(plain, s.packed[:0])
	s.frame(s.packed, last)
}

func (s *sealer) frame(payload []byte, last bool) {
	size := uint32(len(payload) + tagBytes)
	if last {
		size |= lastFrame
	}
	s.raw = binary.BigEndian.AppendUint32(s.raw, size)
	s.raw = s.aead.Seal(s.raw, s.nonce(last), payload, s.aad)
}

// opener reads an object.
type opener struct {
	*frames
	key   string // in the bucket
	rest  []byte
	ended bool
	buf   []byte
	plain []byte
}

// open reads an object's header. Of an object that is longer than maxHead it needs no
// more than that.
func (a *Archive) open(object string, raw []byte, header any) (*opener, error) {
	o := &opener{key: a.prefix() + object}
	if len(raw) < preambleSize || string(raw[:len(magic)]) != magic {
		return nil, o.damaged(errors.New("it does not begin as an object of an archive"))
	}
	if v, c := raw[len(magic)], raw[len(magic)+1]; v != format || c != codecZstd {
		return nil, o.damaged(fmt.Errorf("%w: %d with codec %d, and this Berth reads %d with %d", ErrOtherFormat, v, c, format, codecZstd))
	}
	f, err := a.newFrames(object, raw[:preambleSize])
	if err != nil {
		return nil, err
	}
	o.frames, o.rest = f, raw[preambleSize:]
	doc, err := o.frame(maxHeader)
	if err != nil {
		return nil, err
	}
	dec := json.NewDecoder(bytes.NewReader(doc))
	dec.DisallowUnknownFields()
	if err := dec.Decode(header); err != nil {
		return nil, o.damaged(fmt.Errorf("its header cannot be read: %w", err))
	}
	return o, nil
}

// next returns the next chunk, which is valid until the one after it, or io.EOF.
func (o *opener) next() ([]byte, error) {
	if o.ended {
		if len(o.rest) > 0 {
			return nil, o.damaged(errors.New("something follows its end"))
		}
		return nil, io.EOF
	}
	n := o.n
	payload, err := o.frame(maxFrame)
	if err != nil {
		return nil, err
	}
	_, dec := codec()
	if o.plain, err = dec.DecodeAll(payload, o.plain[:0]); err != nil {
		return nil, o.damaged(fmt.Errorf("chunk %d: %w", n, err))
	}
	return o.plain, nil
}

// frame opens the next frame.
func (o *opener) frame(most int) ([]byte, error) {
	if len(o.rest) < 4 {
		return nil, o.damaged(fmt.Errorf("chunk %d is cut off", o.n))
	}
	size := binary.BigEndian.Uint32(o.rest)
	last := size&lastFrame != 0
	size &^= lastFrame
	if size < tagBytes || size > uint32(most+tagBytes) {
		return nil, o.damaged(fmt.Errorf("chunk %d has %d bytes", o.n, size))
	}
	if uint32(len(o.rest)-4) < size {
		return nil, o.damaged(fmt.Errorf("chunk %d is cut off", o.n))
	}
	n := o.n
	payload, err := o.aead.Open(o.buf[:0], o.nonce(last), o.rest[4:4+size], o.aad)
	if err != nil {
		return nil, o.damaged(fmt.Errorf("chunk %d is not what was stored, or was stored with another key or elsewhere", n))
	}
	o.rest, o.ended, o.buf = o.rest[4+size:], last, payload
	return payload, nil
}

func (o *opener) damaged(cause error) error { return &DamagedError{Object: o.key, Cause: cause} }
