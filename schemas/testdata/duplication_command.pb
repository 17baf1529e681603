
 afe6b80e9e267cef0c7a788331280005acmephotos"2020/Ã©tÃ©/ 100% â˜‚.jpg*1228@J 2f88a3c4d7d4507acc4664b7dc8bf2e3P
Zö˜àÏÀ±Ÿb 883f63d4d1fe902ce159772b1a038fd3h€€€€ r'
md5 304f6be33fc417b75a6e3991b70f672drJ
sha256@304f6be33fc417b75a6e3991b70f672d02e64039e478b208021e5dbebdc4b908x€ˆ‘€€€€ ’Î'
md5 908056e5a10649177fc669199a229c0eJ
sha256@908056e5a10649177fc669199a229c0e163ce7abd276dbc152edcc90d654046a –€€€€ *1777862521987000000-123452""d41d8cd98f00b204e9800998ecf8427e":Ø™àÏÀğõB ee0b61d9da157d4206828613b84ce0b1Jæ™àÏÀùïR1777862500000000000-12345Z
image/jpegb
creatorsomeoneb
titleÃœber alleshšÎ'
md5 6bdd9a06d56343fc99cccf865f9cde20J
sha256@6bdd9a06d56343fc99cccf865f9cde208a9e116bd53b88b6bb6806d0daa5bbf1 ¤€€€€ *1777862521987000000-123452""d41d8cd98f00b204e9800998ecf8427e":ºšàÏÀ¯ÌB 51b3bddd3d7c439b401cfcb729ae4dbbJÈšàÏÀ¸ÆR1777862500000000000-12345Z
image/jpegb
creatorsomeoneb
titleÃœber allesh¢“
#acme/2/photos/a.jpg/content-corrupt'
md5 1eb24fa0256ee54409ae50a364e257a3J
sha256@1eb24fa0256ee54409ae50a364e257a32bbb4cc6a32adcf4e19d795928f9f00fS
1777862521987000000-12345""d41d8cd98f00b204e9800998ecf8427e"•›àÏ€êå µ€€€€ " 4c6af6d71ee90b88186f13e56bf0a6c9(ªbob²¸›àÏÀ€—