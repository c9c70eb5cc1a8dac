package hostapi

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func genHeartbeat(t *rapid.T, name string) Heartbeat {
	hb := Heartbeat{HostID: "h1", BootID: "b", Sequence: rapid.Uint64Range(1, 9).Draw(t, name+" sequence"), Ready: rapid.Bool().Draw(t, name+" ready")}
	few := func(what string) int { return rapid.IntRange(0, 2).Draw(t, name+" "+what) }
	for i := range few("templates") {
		hb.Templates = append(hb.Templates, TemplateState{Name: string(rune('a' + i)), Status: rapid.SampledFrom([]string{"ready", "building"}).Draw(t, name+" status")})
	}
	for i := range few("sources") {
		hb.Sources = append(hb.Sources, TemplateSource{Name: string(rune('a' + i))})
	}
	for i := range few("boxes") {
		b := BoxState{ID: string(rune('a' + i)), Seq: rapid.Uint64Range(1, 2).Draw(t, name+" seq")}
		if rapid.Bool().Draw(t, name+" tells") {
			b.Persistent = new(rapid.Bool().Draw(t, name+" persistent"))
		}
		if rapid.Bool().Draw(t, name+" database") {
			b.Database = &DatabaseState{Error: rapid.SampledFrom([]string{"", "full"}).Draw(t, name+" error")}
		}
		hb.Boxes = append(hb.Boxes, b)
	}
	for i := range few("captures") {
		hb.Captures = append(hb.Captures, CaptureState{ID: string(rune('a' + i))})
	}
	for i := range few("volumes") {
		hb.Volumes = append(hb.Volumes, VolumeState{ID: string(rune('a' + i)), UsedBytes: int64(few("used"))})
	}
	return hb
}

// A part, sent and read, with the heartbeat before it is the heartbeat.
func TestAPartIsTheWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		before, now := genHeartbeat(t, "before"), genHeartbeat(t, "now")
		part := now.Since(before)
		if part.Before != before.Sequence {
			t.Fatalf("before is %d, want %d", part.Before, before.Sequence)
		}
		raw, err := json.Marshal(part)
		if err != nil {
			t.Fatal(err)
		}
		var read HeartbeatPart
		if err := json.Unmarshal(raw, &read); err != nil {
			t.Fatal(err)
		}
		got, err := read.Whole(before)
		if err != nil || !reflect.DeepEqual(got, now) {
			t.Fatalf("%+v, %v; want %+v", got, err, now)
		}
	})
}

func TestAnUnchangedHeartbeatIsAShortPart(t *testing.T) {
	hb := Heartbeat{HostID: "h1", Boxes: []BoxState{{ID: "a", Persistent: new(true), Database: &DatabaseState{}}}, Templates: []TemplateState{{Name: "base"}}}
	again := hb
	again.Sequence, again.Boxes = 2, []BoxState{{ID: "a", Persistent: new(true), Database: &DatabaseState{}}}
	part := again.Since(hb)
	if want := []string{ListTemplates, ListSources, ListBoxes, ListCaptures, ListVolumes}; !slices.Equal(part.Same, want) || part.Boxes != nil || part.Templates != nil {
		t.Fatalf("%+v, want %v", part, want)
	}
}

func TestAListThatNobodyKnowsIsRefused(t *testing.T) {
	_, err := HeartbeatPart{Same: []string{"secrets"}}.Whole(Heartbeat{})
	if err == nil || !strings.Contains(err.Error(), "secrets") {
		t.Fatal(err)
	}
}
