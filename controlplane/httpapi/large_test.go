package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
)

// A response written in pieces equals the one written at once.
func TestLargeOutputIsWholeInPieces(t *testing.T) {
	chance := rand.New(rand.NewPCG(1, 2))
	noise := make([]byte, 3*textPiece+1)
	for i := range noise {
		noise[i] = byte(chance.Uint32())
	}
	for name, out := range map[string]string{
		"nothing": "", "a word": "hello\n", "quotes and tags": `"<a>\` + "\u2028", "NULs": strings.Repeat("\x00", 1<<20),
		"characters across the pieces": strings.Repeat("€", textPiece), "four bytes each": "x" + strings.Repeat("😀", textPiece),
		"no text at all": string(noise), "half a character at the end": strings.Repeat("x", textPiece-1) + "\xe2\x82",
		"a byte that begins one, at the end of a piece": strings.Repeat("x", textPiece-1) + "\xe2" + strings.Repeat("y", textPiece),
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			result := api.ExecResult{ExitCode: 3, Stdout: out, Stderr: "e" + out, DurationMS: 7, TimedOut: true, Truncated: true}
			r.streams.exec = func(context.Context, string, api.Exec) (api.ExecResult, error) {
				return result, nil
			}
			w := r.call(http.MethodPost, "/v1/sandboxes/"+testID+"/exec", "tenant", `{"cmd":"x"}`)
			var got api.ExecResult
			if err := json.Unmarshal(w.Body.Bytes(), &got); w.Code != 200 || err != nil {
				t.Fatal(w.Code, err)
			}
			if want := renderExec(result); !bytes.Equal(got.StdoutBytes(), []byte(out)) || !bytes.Equal(got.StderrBytes(), []byte("e"+out)) ||
				got.ExitCode != 3 || got.DurationMS != 7 || !got.TimedOut || !got.Truncated {
				t.Errorf("it is another: %d bytes, want %d", len(got.Stdout), len(want.Stdout))
			} else if len(out) < textPiece && !reflect.DeepEqual(got, want) {
				t.Errorf("got %+v, want %+v", got, want)
			}
		})
	}
}

func TestListingIsPassedOnEntryByEntry(t *testing.T) {
	r := newRig(t)
	entry := api.FileStat{Path: "/d/x", Name: "x", Type: "file", Mode: "0644", Target: strings.Repeat("t", 1000)}
	give := func(n int, err error) func(string, func(api.FileStat) error) error {
		return func(_ string, each func(api.FileStat) error) error {
			for range n {
				if err := each(entry); err != nil {
					return err
				}
			}
			return err
		}
	}
	broken := &apierror.Error{Code: apierror.EBadGateway, Message: "agent unreachable"}
	for _, n := range []int{0, 1, 5000} {
		r.streams.list = give(n, nil)
		w := r.call(http.MethodGet, "/v1/sandboxes/"+testID+"/fs/dir?path=/d", "tenant", "")
		var got api.Directory
		if err := json.Unmarshal(w.Body.Bytes(), &got); w.Code != 200 || err != nil || got.Path != "/d" || len(got.Entries) != n || got.Entries == nil {
			t.Errorf("%d entries: %d, %v, %d of them", n, w.Code, err, len(got.Entries))
		}
	}
	r.streams.list = give(1, broken)
	if w := r.call(http.MethodGet, "/v1/sandboxes/"+testID+"/fs/dir?path=/d", "tenant", ""); w.Code != 502 {
		t.Errorf("a listing that breaks off early: %d", w.Code)
	}
	r.streams.list = give(5000, broken)
	func() {
		defer func() {
			if v, _ := recover().(error); !errors.Is(v, http.ErrAbortHandler) {
				t.Errorf("a listing that breaks off late was ended in order: %v", v)
			}
		}()
		r.call(http.MethodGet, "/v1/sandboxes/"+testID+"/fs/dir?path=/d", "tenant", "")
	}()
}

// renderExec renders the whole response at once.
func renderExec(r api.ExecResult) api.ExecResult {
	out := api.ExecResult{
		ExitCode:   r.ExitCode,
		DurationMS: r.DurationMS,
		TimedOut:   r.TimedOut,
		Truncated:  r.Truncated,
	}
	out.Stdout, out.StdoutBase64 = text(r.Stdout)
	out.Stderr, out.StderrBase64 = text(r.Stderr)
	return out
}

// text renders a program's output as a JSON string, and the exact bytes beside it if
// the string cannot express them.
func text(s string) (string, api.Bytes) {
	if utf8.ValidString(s) {
		return s, nil
	}
	return strings.ToValidUTF8(s, "\uFFFD"), api.Bytes(s)
}
