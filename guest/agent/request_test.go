package agent

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-cloud/berth/guest/guestapi"
)

func TestConfirmationIsEncodedAsByTheStandardLibrary(t *testing.T) {
	for _, c := range []guestapi.IdentityConfirmation{
		{}, {Generation: 1<<64 - 1, EntropyBits: 512, ClockSteppedMS: -1 << 63, ConnectionsCut: 7, TookMicrosecond: 9},
	} {
		want, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		if got := appendConfirmation(nil, &c); string(got) != string(want) {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestPlainIdentityIsDecodedTheQuickWay(t *testing.T) {
	id := testIdentity(9)
	id.UnixNanos = 1795182929123456789
	id.ResetTCP, id.Resumed, id.GatewayMAC, id.StayAwake = true, true, "52:54:00:be:47:01", true
	raw, err := json.Marshal(id)
	if err != nil {
		t.Fatal(err)
	}
	var got guestapi.Identity
	var r room
	p := plain{raw: raw, room: &r, scratch: r.scratch[:0]}
	if !p.identity(&got) {
		t.Fatalf("not plain at byte %d: %s", p.at, raw)
	}
	if diff := cmp.Diff(id, got); diff != "" {
		t.Error(diff)
	}
}

// FuzzDecodeIdentity holds the quick decoder against encoding/json: what it
// takes, it takes the same way.
func FuzzDecodeIdentity(f *testing.F) {
	raw, err := json.Marshal(testIdentity(9))
	if err != nil {
		f.Fatal(err)
	}
	const head, tail = `{"generation":1,"unix_nanos":2,"entropy":"`, `","hostname":"h","machine_id":"m"`
	for _, seed := range []string{
		head + "AA==" + tail + "}", head + "AB==" + tail + "}", head + "ABC=" + tail + "}", head + "A===" + tail + "}",
		head + "AAAA" + tail + `,"env":{}}`, head + "A\nA=" + tail + "}", head + "AA=A" + tail + "}", head + "AAA" + tail + "}",
		head + tail + `,"env":{"a":"1","a":"2"},"resumed":true}`, head + tail + `,"reset_tcp":true,"resumed":true,"gateway_mac":"x"}`,
		head + tail + `,"resumed":true,"reset_tcp":true}`, head + tail + `,"stay_awake":true}`, head + tail + "} ", head + tail + `,"nameservers":["1","2"]}x`,
		string(raw), "{}", "null", `{"generation":01}`, `{"generation":1e3}`, `{"generation":-1}`, `{"Generation":1}`,
		`{"generation":1,"generation":2}`, `{"env":{"a":"1","a":"2"}}`, `{"entropy":"AA=="}`, `{"entropy":"A\nA=="}`, `{"entropy":"AB=="}`,
		`{"hostname":"\u0041"}`, `{"hostname":"é"}`, `{"reset_tcp":true}`, `{"reset_tcp":trues}`, `{"ssh_host_keys":[{"type":"a\"b"}]}`,
		`{"nameservers":[]}`, `{"nameservers":null}`, `{"env":{}} `, `{"env":{}} x`, `{"unix_nanos":9223372036854775808}`, `{"hostname" : "x"}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var want guestapi.Identity
		wantErr := json.Unmarshal(raw, &want)
		var got guestapi.Identity
		gotErr := decodeIdentity(raw, &room{}, &got)
		if (wantErr == nil) != (gotErr == nil) {
			t.Fatalf("%q: %v, encoding/json: %v", raw, gotErr, wantErr)
		}
		if wantErr != nil {
			return
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q: %s", raw, diff)
		}
	})
}
