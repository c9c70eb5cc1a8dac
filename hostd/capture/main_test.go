package capture_test

import (
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/berth-cloud/berth/hostd/box/boxtest"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	idA = "aaaaaaaaaaaaaaaaaaaaaaaaaa"
	idB = "bbbbbbbbbbbbbbbbbbbbbbbbbb"
)

// What these tests share with those of boxes.
type daemon = boxtest.Daemon

var (
	spec  = boxtest.Spec
	put   = boxtest.Put
	await = boxtest.Await
	must  = boxtest.Must
	world = boxtest.Faulty
	cold  = boxtest.Cold

	blockAt = boxtest.BlockAt

	wantStatus  = boxtest.WantStatus
	nothingLeft = boxtest.NothingLeft
)

func id(i int) string { return strings.Repeat("a", 25) + string(rune('a'+i)) }

func memory(of string) hostapi.CaptureSpec {
	return hostapi.CaptureSpec{BoxID: of, Generation: 1, Memory: true}
}
