package guestio_test

import (
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/berth-cloud/berth/hostd/box/boxtest"
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
	start = boxtest.Start
	put   = boxtest.Put
	await = boxtest.Await
	must  = boxtest.Must

	wantStatus  = boxtest.WantStatus
	nothingLeft = boxtest.NothingLeft
	withEvents  = boxtest.WithEvents
)

func id(i int) string { return strings.Repeat("a", 25) + string(rune('a'+i)) }
