
 27dc22e01999939fcc48e92ec97d1f54acme2"photos*2020/Ã©tÃ©/ 100% â˜‚.jpg08B 071ba70d8be53a69376b61d69bcd15f8J2026-05PXbÆ
Î'
md5 9bdd092b218562242354e6b56f8ae009J
sha256@9bdd092b218562242354e6b56f8ae0094bceb6abd312ce7e56e19a4be6bc821b ‘€€€€ *1777862521987000000-123452""d41d8cd98f00b204e9800998ecf8427e":µ™àÏ€ÚÄ	B 2a8ac2abb41bb54ceb763523dd552b26JÃ™àÏ€ã¾
R1777862500000000000-12345Z
image/jpegb
creatorsomeoneb
titleÃœber alleshÎ'
md5 2625ead18c871a0389e75d04d95d91daJ
sha256@2625ead18c871a0389e75d04d95d91da2b016d46d2af577055afcb66c6ef9954 Ÿ€€€€ *1777862521987000000-123452""d41d8cd98f00b204e9800998ecf8427e":—šàÏ€™›B 4bf186fae4b3522d4231560e1fe35b5eJ¥šàÏ€¢•R1777862500000000000-12345Z
image/jpegb
creatorsomeoneb
titleÃœber alleshÈšàÏÀ¸Æ"ÏšàÏ€½ƒ( İà°ŠıfjÖšàÏÀÁÀrİšàÏ€Æız c6e9ace6faae957c6066863fd500cee7