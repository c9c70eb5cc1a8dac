package docs

import (
	"encoding/base64"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/berth-cloud/berth/tier"
)

// verifier is how the code of one language in webhooks.md becomes a program that prints
// true or false for each line of the file that it is given: secret, signature, body and
// time, in base64. CODE stands for the code.
type verifier struct {
	program []string // the name of the file follows; the first must be installed
	file    string
	text    string
}

var verifiers = map[string]verifier{
	"go": {[]string{"go", "run"}, "main.go", `package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

CODE

func main() {
	raw, _ := os.ReadFile(os.Args[1])
	for line := range strings.Lines(string(raw)) {
		var f [4]string
		for i, s := range strings.Split(strings.TrimSpace(line), ",") {
			b, _ := base64.StdEncoding.DecodeString(s)
			f[i] = string(b)
		}
		now, _ := strconv.ParseInt(f[3], 10, 64)
		fmt.Println(verify(f[0], f[1], []byte(f[2]), now))
	}
}
`},
	"python": {[]string{"python3"}, "main.py", `CODE

import base64, sys
for line in open(sys.argv[1]):
    secret, signature, body, now = [base64.b64decode(s) for s in line.strip().split(",")]
    print(str(verify(secret.decode(), signature.decode(), body, int(now))).lower())
`},
	"js": {[]string{"node"}, "main.mjs", `CODE

import { readFileSync } from 'node:fs';
for (const line of readFileSync(process.argv[2], 'utf8').trim().split('\n')) {
  const [secret, signature, body, now] = line.split(',').map((s) => Buffer.from(s, 'base64'));
  console.log(verify(secret.toString(), signature.toString(), body, Number(now.toString())));
}
`},
	"java": {[]string{"java"}, "Main.java", `import static java.nio.charset.StandardCharsets.UTF_8;
import java.nio.file.*;
import java.security.MessageDigest;
import java.util.*;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;

public class Main {
CODE

    public static void main(String[] args) throws Exception {
        for (var line : Files.readAllLines(Path.of(args[0]))) {
            var f = Arrays.stream(line.split(",")).map(s -> Base64.getDecoder().decode(s)).toList();
            System.out.println(verify(new String(f.get(0), UTF_8), new String(f.get(1), UTF_8), f.get(2), Long.parseLong(new String(f.get(3), UTF_8))));
        }
    }
}
`},
	"php": {[]string{"php"}, "main.php", `<?php
CODE

foreach (file($argv[1]) as $line) {
    [$secret, $signature, $body, $now] = array_map('base64_decode', explode(',', trim($line)));
    echo verify($secret, $signature, $body, (int) $now) ? "true\n" : "false\n";
}
`},
}

var verifyBlock = regexp.MustCompile("(?s)\n```(\\w+)\n(.*?)\n```\n")

// The code in webhooks.md decides about the vectors of all clients as they do.
func TestCodeThatVerifiesWebhooks(t *testing.T) {
	tier.Slow(t)
	page, err := os.ReadFile("webhooks.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "### Without a client\n")
	section, _, _ = strings.Cut(section, "\n## ")
	lines, want := vectors(t)
	found := 0
	for _, block := range verifyBlock.FindAllStringSubmatch(section, -1) {
		language, code := block[1], block[2]
		v, ok := verifiers[language]
		if !ok {
			t.Errorf("nothing runs %s", language)
			continue
		}
		found++
		t.Run(language, func(t *testing.T) {
			if _, err := exec.LookPath(v.program[0]); err != nil && (language == "java" || language == "php") {
				t.Skip("scripts/install-deps test does not install " + language)
			}
			program := tier.Program(t, v.program[0])
			dir := t.TempDir()
			file, cases := filepath.Join(dir, v.file), filepath.Join(dir, "cases")
			for name, text := range map[string]string{file: strings.Replace(v.text, "CODE", code, 1), cases: lines} {
				if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			cmd := exec.CommandContext(t.Context(), program, append(v.program[1:], file, cases)...)
			cmd.Stderr = os.Stderr
			out, err := cmd.Output()
			if got := strings.TrimSpace(string(out)); err != nil || got != want {
				t.Errorf("%v\n%s\nwant\n%s", err, got, want)
			}
		})
	}
	if found != len(verifiers) {
		t.Errorf("code in %d languages, want %d", found, len(verifiers))
	}
}

func vectors(t *testing.T) (lines, want string) {
	t.Helper()
	raw, err := os.ReadFile("../controlplane/api/testdata/webhooks.json")
	if err != nil {
		t.Fatal(err)
	}
	var all []struct {
		Valid                   bool
		Secret, Signature, Body string
		Now                     int64
	}
	if err := json.Unmarshal(raw, &all); err != nil {
		t.Fatal(err)
	}
	var answers []string
	for _, v := range all {
		var fields []string
		for _, s := range []string{v.Secret, v.Signature, v.Body, strconv.FormatInt(v.Now, 10)} {
			fields = append(fields, base64.StdEncoding.EncodeToString([]byte(s)))
		}
		lines += strings.Join(fields, ",") + "\n"
		answers = append(answers, strconv.FormatBool(v.Valid))
	}
	return lines, strings.Join(answers, "\n")
}
