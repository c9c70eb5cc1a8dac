package edge

// The words by which programs are recognised, in lower case: each is in the User-Agent
// that the program sends, and in no browser's. To add one, add a real User-Agent to
// the test as well.

// monitors are services and programs that check whether a site is up.
var monitors = []string{
	"uptimerobot",
	"pingdom",
	"statuscake",
	"better uptime", "betteruptime", "betterstack", "better stack",
	"site24x7",
	"datadogsynthetics", "datadog/synthetics",
	"newrelicpinger", "newrelicsynthetics",
	"checklyhq", "checkly/",
	"updown.io",
	"freshping",
	"hetrixtools",
	"uptime-kuma", "uptime kuma",
	"googlestackdrivermonitoring",
	"amazon-route53-health-check",
	"elb-healthchecker",
	"cloudwatchsynthetics",
	"googlehc/", // load balancers of Google Cloud
	"cloudflare-healthchecks", "cloudflare-traffic-manager",
	"azure traffic manager", "edge health probe",
	"statuspage",
	"statusgator",
	"nodeping",
	"check_http", "check_curl", "nagios-plugins", "icinga",
	"zabbix",
	"blackbox exporter", "blackbox-exporter", "prometheus/",
	"grafana synthetic", "grafana-synthetic",
	"kube-probe/",
	"consul health check",
	"uptime.com", "uptimebot",
	"uptrends",
	"dotcom-monitor", "dotcom monitor",
	"healthchecks.io",
	"cronitor",
	"hyperping",
	"onlineornot",
	"ohdear", "oh dear",
	"pulsetic",
	"sematext synthetics",
	"sentryuptimebot",
	"dynatracesynthetic", "ruxitsynthetic",
	"catchpoint",
	"thousandeyes",
	"gatus/",
	"upptime",
	"prtg",
	"checkmk", "check_mk",
}

// crawlers are the robots of search engines, of social networks and messengers that
// preview links, of assistants, and of marketing.
var crawlers = []string{
	// Search.
	"googlebot", "google-inspectiontool", "googleother", "adsbot-google", "mediapartners-google", "apis-google", "storebot-google", "feedfetcher-google",
	"bingbot", "bingpreview", "adidxbot", "msnbot",
	"duckduckbot", "duckduckgo-favicons-bot",
	"baiduspider",
	"yandexbot", "yandeximages", "yandexmobilebot", "yandex.com/bots",
	"applebot",
	"slurp", // of Yahoo
	"sogou web spider", "sogou inst spider",
	"360spider", "haosouspider",
	"petalbot",
	"yisouspider", "bytespider",
	"seznambot", "qwantify", "qwantbot", "mojeekbot", "exabot", "coccocbot", "naverbot", "yeti/", "daum/",
	"bravebot", "kagibot", "marginalia", "yacybot", "gigablast", "archive.org_bot", "ia_archiver", "heritrix",
	// Social networks and messengers.
	"facebookexternalhit", "facebookcatalog", "facebot", "meta-externalagent", "meta-externalfetcher",
	"twitterbot",
	"linkedinbot",
	"slackbot", "slack-imgproxy",
	"discordbot",
	"telegrambot",
	"whatsapp/",
	"pinterestbot", "pinterest/0.",
	"redditbot",
	"skypeuripreview", "microsoftpreview",
	"viber/", "vkshare", "mastodon/", "bluesky cardyb", "cardyb/", "snap url preview", "flipboardproxy", "embedly", "iframely", "line-poker", "kakaotalk-scrap", "synapse (bot",
	// Assistants and the gathering of text.
	"gptbot", "chatgpt-user", "oai-searchbot",
	"claudebot", "claude-user", "claude-searchbot", "claude-web", "anthropic-ai",
	"perplexitybot", "perplexity-user",
	"ccbot",
	"cohere-ai", "cohere-training-data-crawler", "mistralai-user", "youbot", "phindbot", "amazonbot", "amzn-searchbot", "ai2bot", "diffbot", "timpibot", "webzio", "imagesiftbot", "kangaroo bot", "velenpublicwebcrawler", "friendlycrawler", "pangubot", "duckassistbot", "icc-crawler",
	// Marketing, and the mapping of the web.
	"ahrefsbot", "ahrefssiteaudit",
	"semrushbot", "siteauditbot", "splitsignalbot",
	"mj12bot", "dotbot", "rogerbot", "blexbot", "dataforseobot", "serpstatbot", "seokicks", "sistrix", "megaindex", "linkdexbot", "screaming frog", "sitebulb", "barkrowler", "awariobot", "zoominfobot", "ias_crawler", "turnitin", "domainstatsbot", "netcraftsurveyagent", "censysinspect", "internet-measurement", "paloaltonetworks", "leakix", "shodan", "zgrab", "builtwith", "wappalyzer", "semanticscholarbot",
}
